#!/bin/sh
# Creates an authority and the nodes' shared secret in a volume that no node sees, and a volume for each node with its files:
# its certificate and key, the authority's certificate, the secret. Existing files stay.
set -eu
: "${SECRETS:=/secrets}" "${OWNER:=}"
cd "${SANDQ_NODE__DATA_DIR:?}"
umask 077
[ -e ca/ca.pem ] || sandq certs ca --out ca
if [ ! -e cluster.secret ]; then
  # Write files completely or not at all: this script can be ended at any time.
  python3 -c 'import secrets; print(secrets.token_urlsafe(32))' >cluster.secret.new
  mv cluster.secret.new cluster.secret
fi
for node in node1 node2 node3; do
  own="$SECRETS/$node"
  mkdir -p "$own"
  cp ca/ca.pem "$own/ca.pem"
  [ -e "$own/$node.pem" ] || sandq certs node "$node" --host "$node" --ca ca --out "$own"
  if [ ! -e "$own/cluster.secret" ]; then
    cp cluster.secret "$own/cluster.secret.new"
    mv "$own/cluster.secret.new" "$own/cluster.secret"
  fi
  [ -z "$OWNER" ] || chown -R "$OWNER" "$own"
done
