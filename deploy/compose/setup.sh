#!/bin/sh
# An authority, in a volume that no node sees; and in another one what nodes need: a certificate for each, the authority's own,
# the secret that they share. What is there stays.
set -eu
: "${SECRETS:=/secrets}"
cd "${SANDQ_NODE__DATA_DIR:?}"
umask 077
[ -e ca/ca.pem ] || sandq certs ca --out ca
cp ca/ca.pem "$SECRETS/ca.pem"
for node in node1 node2 node3; do
  [ -e "$SECRETS/$node.pem" ] || sandq certs node "$node" --host "$node" --ca ca --out "$SECRETS"
done
if [ ! -e "$SECRETS/cluster.secret" ]; then
  # Whole or not at all: it is ended at any moment.
  python3 -c 'import secrets; print(secrets.token_urlsafe(32))' >"$SECRETS/cluster.secret.new"
  mv "$SECRETS/cluster.secret.new" "$SECRETS/cluster.secret"
fi
