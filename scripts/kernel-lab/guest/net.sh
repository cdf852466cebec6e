# Sourced: creates two soft-RoCE ports, rxe0 on v0 with umad0 and rxe1 on v1 with umad1, connected
# by a veth pair. Link-local routes are per device, so frames cross the pair within one namespace.
ip link set lo up
# No duplicate address detection, which would lose the first MADs for 1-2 s.
for d in all default; do echo 0 >/proc/sys/net/ipv6/conf/$d/accept_dad; done
# The ports' GUIDs are derived from these addresses, and are in the snapshot (lab-snapshot).
rip link add v0 address 02:00:00:00:00:01 type veth peer name v1 address 02:00:00:00:01:01
rip link set v0 up
rip link set v1 up
rdma link add rxe0 type rxe netdev v0
rdma link add rxe1 type rxe netdev v1
CLIENT_GID=fe80::ff:fe00:1
SA_GID=fe80::ff:fe00:101
n=0
until [ "$(rip -6 addr show scope link | grep -c 'inet6 fe80')" = 2 ] || [ $n -ge 50 ]; do
	n=$((n + 1))
	sleep 0.1
done
# Fixed neighbours; otherwise the first write() to a destination waits up to 1 s for its address.
rip -6 neigh replace $SA_GID lladdr 02:00:00:00:01:01 nud permanent dev v0
rip -6 neigh replace $CLIENT_GID lladdr 02:00:00:00:00:01 nud permanent dev v1
