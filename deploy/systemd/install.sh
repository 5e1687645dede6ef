#!/bin/sh
# Installs sandq from a release as a service: install.sh DIST [ROOT]. DIST is the output of `make release`. ROOT is another
# root directory, for images or for a trial. It does not start the service and does not overwrite a configuration.
set -eu
# The umask of the installing user may be strict, but the service runs as another user.
umask 022
dist=${1:?usage: install.sh DIST [ROOT]}
root=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
: "${PYTHON:=python3}"

(cd "$dist" && sha256sum --check --strict --quiet SHA256SUMS)
"$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || { echo "sandq needs Python 3.11 to 3.14; name one: PYTHON=python3.14 $0" >&2; exit 1; }
if [ -z "$root" ] && ! id sandq >/dev/null 2>&1; then
  useradd --system --user-group --home-dir /var/lib/sandq --no-create-home --shell /usr/sbin/nologin sandq
fi
install -d "$root/opt" "$root/etc/sandq" "$root/lib/systemd/system"
# Next to the old version, so that a failed upgrade changes nothing.
rm -rf "$root/opt/sandq.new"
"$PYTHON" -m venv "$root/opt/sandq.new"
"$root/opt/sandq.new/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$dist/requirements.lock"
"$root/opt/sandq.new/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index "$dist"/*.whl
# Programs of a virtual environment contain its path.
for program in sandq sandctl; do
  sed -i "1s|.*|#!/opt/sandq/bin/python3|" "$root/opt/sandq.new/bin/$program"
done
rm -rf "$root/opt/sandq.old"
[ ! -e "$root/opt/sandq" ] || mv "$root/opt/sandq" "$root/opt/sandq.old"
mv "$root/opt/sandq.new" "$root/opt/sandq"
install -m 0644 "$here/sandq.service" "$root/lib/systemd/system/sandq.service"
if [ ! -e "$root/etc/sandq/sandq.yaml" ]; then
  printf '# docs/configuration.md has every key.\nnode: {id: node1, data_dir: /var/lib/sandq}\ncluster: {bootstrap: true}\n' >"$root/etc/sandq/sandq.yaml"
fi
echo "installed: systemctl daemon-reload && systemctl enable --now sandq"
