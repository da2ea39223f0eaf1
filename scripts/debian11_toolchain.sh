#!/usr/bin/env bash
# Unpacks Debian 11's g++ 10, with its C library, into a folder, for a wheel that older systems load too.
#
#   scripts/debian11_toolchain.sh FOLDER
#   CC=FOLDER/cc CXX=FOLDER/c++ scripts/build_wheel.sh OUT
#
# Nothing is installed. Needs apt-get and dpkg-deb, Debian's keys (Debian has them; on Ubuntu install
# debian-archive-keyring), and an x86-64 Linux with binutils and the libraries of a newer gcc (mpc, mpfr, isl),
# which the old compiler runs on.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd)
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT

mkdir -p "$apt"/{lists/partial,cache/archives/partial,parts}
echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bullseye main' > "$apt/sources.list"
: > "$apt/status"
options=(-q -o "Dir::Etc::sourcelist=$apt/sources.list" -o "Dir::Etc::sourceparts=$apt/parts" -o "Dir::State::lists=$apt/lists"
  -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
(
  cd "$apt"
  apt-get "${options[@]}" download cpp-10 gcc-10 g++-10 libgcc-10-dev libstdc++-10-dev libc6 libc6-dev libcrypt1 libcrypt-dev \
    linux-libc-dev libgcc-s1 libstdc++6 libgomp1 libatomic1 libquadmath0 libitm1
  for package in *.deb; do
    dpkg-deb -x "$package" "$folder/root"
  done
)
# Links that name a place in the system lead into the folder.
find "$folder/root" -type l -lname '/*' | while read -r link; do
  ln -sfnr "$folder/root$(readlink "$link")" "$link"
done
for name in cc:gcc c++:g++; do
  cat > "$folder/${name%%:*}" << WRAPPER
#!/bin/sh
exec "$folder/root/usr/bin/x86_64-linux-gnu-${name##*:}-10" --sysroot="$folder/root" "\$@"
WRAPPER
  chmod +x "$folder/${name%%:*}"
done
"$folder/c++" --version | head -1
