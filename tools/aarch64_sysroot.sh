#!/usr/bin/env bash
# Makes a folder with Debian's arm64 libraries, for building Atlas for GB10's host on another machine:
#   tools/aarch64_sysroot.sh build/aarch64-sysroot
#   cmake --preset aarch64 && cmake --build --preset aarch64
# Nothing is installed: packages are resolved as if on an empty arm64 machine, downloaded and unpacked. The compiler
# and qemu are packages of this machine: g++-aarch64-linux-gnu, qemu-user-static.
set -euo pipefail
[[ $# == 1 ]] || { sed -n '2,6s/^# //p' "$0"; exit 2; }
mkdir -p "$1/state/lists/partial" "$1/state/archives/partial" "$1/root/usr/lib" "$1/root/usr/bin"
sysroot=$(realpath "$1")
: > "$sysroot/state/status"
apt_arm64() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State::status="$sysroot/state/status" \
    -o Dir::State::lists="$sysroot/state/lists" -o Dir::Cache::archives="$sysroot/state/archives" \
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root \
    -o Debug::NoLocking=1 "$@"
}
# The libraries among tools/packages.txt; programs run on this machine.
mapfile -t packages < <(grep -E '^(lib.*-dev|nlohmann-json3-dev|doctest-dev)$' "$(dirname "$0")/packages.txt")
apt_arm64 update
apt_arm64 -y --no-install-recommends --download-only install "${packages[@]}" libc6-dev libstdc++-12-dev
# As on a machine whose /lib is /usr/lib.
ln -sfn usr/lib "$sysroot/root/lib"
ln -sfn usr/bin "$sysroot/root/bin"
ln -sfn usr/bin "$sysroot/root/sbin"
for deb in "$sysroot"/state/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$sysroot/root" --exclude=./dev --exclude=./etc \
    --exclude=./var --exclude=./usr/share/doc
done
rm -rf "$sysroot/state"
