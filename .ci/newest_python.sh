#!/usr/bin/env bash
# Runs the tests on the Python of Debian's next release, for which pip installs the newest JAX.
#
# usage: newest_python.sh FOLDER [ARGUMENT...]     FOLDER: the new system, made once (1-2 minutes)
#
# It needs root, Debian's debootstrap and a mount namespace. The ARGUMENTs go to pytest.
set -euo pipefail
root=$1
shift
if [ ! -e "$root/ready" ]; then
  rm -rf "$root"
  mkdir -p "$root"
  sources=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true)
  mirror=$(sed -nE 's/^(URIs:|deb( \[[^]]*\])?) +([^ ]+).*/\3/p' <<<"$sources" | head -n 1)
  packages=python3,python3-venv,ca-certificates,git,build-essential,iproute2,procps
  debootstrap --variant=minbase --include="$packages" trixie "$root" "$mirror" >/dev/null
  touch "$root/ready"
fi
# The same network and certificates as here.
cp /etc/resolv.conf /etc/hosts "$root/etc/"
if [ -e /etc/pip.conf ]; then cp /etc/pip.conf "$root/etc/"; fi
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
fi
# What the working tree holds, and the data beside it that some tests use.
rm -rf "$root/checkout" "$root/shared"
mkdir "$root/checkout"
cp -r .git "$root/checkout/"
git ls-files -z --cached --others --exclude-standard |
  tar --create --null --ignore-failed-read --files-from=- | tar --extract --directory="$root/checkout"
if [ -d ../shared ]; then cp -r ../shared "$root/shared"; fi
# Mounts are those of this namespace alone: FOLDER can be removed at any time.
export ROOT=$root
exec unshare --mount --propagation private bash -c '
  set -euo pipefail
  mount --bind "$ROOT" "$ROOT"
  mount -t proc proc "$ROOT/proc"
  mount --rbind /dev "$ROOT/dev"
  mount --rbind /sys "$ROOT/sys"  # says whether there are large pages
  # The root of the namespace itself, since tests of networks make namespaces in it.
  mkdir -p "$ROOT/outside"
  cd "$ROOT"
  pivot_root . outside
  exec chroot . /usr/bin/env -u ROOT -u PYTHONPATH -u VIRTUAL_ENV -u XDG_CACHE_HOME HOME=/root \
    PATH=/nox/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    UV_PYTHON_DOWNLOADS=never bash -c '\''
      set -euo pipefail
      umount --lazy /outside
      cd /checkout
      if [ ! -e /nox/bin/nox ]; then
        python3 -m venv /nox
        /nox/bin/pip install --quiet --root-user-action=ignore "nox[uv]"
      fi
      nox --session tests -- "$@"
    '\'' - "$@"
' - "$@"
