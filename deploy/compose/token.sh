#!/bin/sh
# A token for Prometheus, which runs as another user. It gives no rights, so everyone in that container may read it.
set -eu
cd "${SANDQ_NODE__DATA_DIR:?}"
[ ! -e prometheus.token ] || exit 0
: "${SECRETS:=/secrets}" "${NODE1:=/node1}" "${SERVER:=node1:7170}"
token() {
  sandctl --server "$SERVER" --ca "$SECRETS/ca.pem" --token-file "$NODE1/admin.token" token "$@" --out made.token
}
# If the script ended between the two steps, the token exists but its text is lost: rotate it.
token create prometheus --grant read:nothing || token rotate prometheus
cp -f "$SECRETS/ca.pem" ca.pem
chmod 0444 ca.pem made.token
chmod 0755 .
mv -f made.token prometheus.token
