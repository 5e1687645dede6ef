#!/bin/sh
# A token for Prometheus, which runs as another user: it gives no right to anything, and may be read by all of its container.
set -eu
cd "${SANDQ_NODE__DATA_DIR:?}"
[ ! -e prometheus.token ] || exit 0
: "${SECRETS:=/secrets}" "${NODE1:=/node1}" "${SERVER:=node1:7170}"
sandctl --server "$SERVER" --ca "$SECRETS/ca.pem" --token-file "$NODE1/admin.token" \
  token create prometheus --grant read:nothing --out made.token
cp "$SECRETS/ca.pem" ca.pem
chmod 0444 ca.pem made.token
chmod 0755 .
mv made.token prometheus.token
