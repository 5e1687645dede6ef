#!/bin/sh
# In a volume of its own: an authority, a certificate for each node, the secret that nodes share. What is there stays.
set -eu
cd "${SANDQ_NODE__DATA_DIR:?}"
umask 077
[ -e ca.pem ] || { sandq certs ca --out ca && cp ca/ca.pem ca.pem; }
for node in node1 node2 node3; do
  [ -e "$node.pem" ] || sandq certs node "$node" --host "$node" --ca ca --out .
done
[ -e cluster.secret ] || python3 -c 'import secrets; print(secrets.token_urlsafe(32))' >cluster.secret
