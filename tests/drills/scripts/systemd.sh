#!/bin/bash
# The first process of a machine that has this one's files, and systemd: call it in new namespaces (mount, pid, ipc, uts, net, cgroup).
#
#   systemd.sh FOLDER PROGRAMS PATH...    FOLDER is empty; each PATH becomes reachable for every user
set -eu
folder=$1 programs=$2
shift 2
root=$folder/root

mount --make-rprivate /
mkdir "$folder/new" "$root"
mount -t tmpfs tmpfs "$folder/new"
mkdir "$folder/new/upper" "$folder/new/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/new/upper,workdir=$folder/new/work" "$root"

mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mkdir -p "$root/sys/fs/cgroup"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero full random urandom tty; do
  touch "$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
ip link set lo up

# What this machine has installed does not start there.
rm -rf "$root/etc/systemd/system"
mkdir -p "$root/etc/systemd/system"
echo > "$root/etc/machine-id"
cat > "$root/etc/systemd/system/drill.target" <<'UNIT'
[Unit]
Description=Only what the drill starts
Requires=sysinit.target
After=sysinit.target
AllowIsolate=yes
UNIT
for unit in $(cd "$root/lib/systemd/system/sysinit.target.wants" && ls | grep -v journal) network-online.target; do
  ln -s /dev/null "$root/etc/systemd/system/$unit"
done

for program in muster muster-agent muster-coordinator muster-runner; do
  touch "$root/usr/local/bin/$program"
  mount --bind "$programs/$program" "$root/usr/local/bin/$program"
done
for path in "$@"; do
  while [ "$path" != / ]; do
    chmod a+rX "$root$path"
    path=$(dirname "$path")
  done
done

exec chroot "$root" /usr/bin/env -i container=other PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin \
  /lib/systemd/systemd --log-target=journal --show-status=no systemd.unit=drill.target
