# Tests ibsa on the umad device of a real kernel: one line per check, PASS or FAIL.
. /lab/net.sh
export RUST_LOG=info
failed=0
pass() { echo "PASS $*"; }
fail() { echo "FAIL $*"; failed=1; }
title() { echo "== $*"; }
ask() { sa_client rxe0 "$@" || failed=1; }

transport=umad
# start [OPTION...]: starts ibsa on rxe1 and waits until it answers from the snapshot on disk. There
# is no SM to follow.
start() {
	: >ibsa.log
	ibsa --sm http://127.0.0.1:1 --transport $transport --device rxe1 --cache-dir /lab/cache "$@" \
		>>ibsa.log 2>&1 &
	ibsa=$!
	until grep -q 'serving generation' ibsa.log; do
		kill -0 $ibsa 2>/dev/null || { fail "ibsa $*"; cat ibsa.log; return; }
		sleep 0.05
	done
}
# stop SIGNAL
stop() {
	kill "$1" $ibsa
	wait $ibsa 2>/dev/null
}

title "requests of one MAD, and tables by the kernel's RMPP"
start
ask $SA_GID path:none path:owner path:kernel table

title "a port that another process already serves"
if ibsa --sm http://127.0.0.1:1 --transport umad --device rxe1 >second.log 2>&1; then
	fail "two processes serve one port"
elif grep -q 'another process serves class SubnAdm at rxe1 port 1' second.log; then
	pass "taken: $(sed 's/.*ERROR //' second.log | cut -c1-80)..."
else
	fail "taken: $(cat second.log)"
fi

title "our RMPP and the kernel's, with packet loss"
# lossy DEVICE CHECK [QP]: runs CHECK with packet loss on DEVICE, until frames were actually lost.
lossy() {
	rtc qdisc add dev "$1" root netem loss 6%
	tries=0 lost=0
	until [ "${lost:-0}" -gt 0 ] || [ $tries = 6 ]; do
		ask $SA_GID/${3:-1} "$2"
		lost=$(rtc -s qdisc show dev "$1" | sed -n 's/.*dropped \([0-9]*\).*/\1/p' | head -1)
		tries=$((tries + 1))
	done
	rtc qdisc del dev "$1" root
	if [ "${lost:-0}" -gt 0 ]; then
		pass "$2 despite $lost frames lost at $1"
	else
		fail "no frame lost at $1"
	fi
}
lossy v1 tables:4
lossy v0 multi:3
lossy v1 multi:3

title "Debian's saquery"
echo 0x1 >sm_lid
mount --bind sm_lid /sys/class/infiniband/rxe0/ports/1/sm_lid
query() { SA_GID=$SA_GID LD_PRELOAD=/lib/libadd_grh.so saquery -C rxe0 -P 1 "$@"; }
# expect COUNT TEXT ARGUMENT...: checks that saquery prints COUNT lines with TEXT.
expect() {
	wanted=$1 text=$2
	shift 2
	query "$@" >query.log 2>&1
	got=$(grep -c "$text" query.log)
	if [ "$got" = "$wanted" ]; then
		pass "saquery $*: $got x $text"
	else
		fail "saquery $*: $got x $text"
		head -20 query.log
	fi
}
expect 1 'Capability mask[.]' -c
expect 126 'NodeRecord dump' NR
expect 1 'PathRecord dump' PR --sgid-to-dgid $CLIENT_GID-$SA_GID
umount /sys/class/infiniband/rxe0/ports/1/sm_lid

title "a device that is removed and returns"
rdma link delete rxe1
sleep 0.3
rdma link add rxe1 type rxe netdev v1
rip -6 neigh replace $CLIENT_GID lladdr 02:00:00:00:00:01 nud permanent dev v1
n=0
until [ "$(grep -c 'opened QP1' ibsa.log)" = 2 ] || [ $n -ge 100 ]; do
	n=$((n + 1))
	sleep 0.1
done
ask $SA_GID path:none
stop -TERM

if [ -x /bin/ud_client ]; then
	title "a queue pair to which clients are redirected"
	transport=verbs
	start
	qpn=$(sed -n 's/.*qpn=\([0-9]*\).*/\1/p' ibsa.log | head -1)
	ask $SA_GID/$qpn path:none path:kernel table tables:2
	ud_client rxe0 $SA_GID/$qpn 500 || failed=1
	lossy v1 tables:1 $qpn
	stop -TERM
	transport=umad
fi

title "kill and restart without a holder: the kernel answers with status 0x000c"
start
sa_client rxe0 $SA_GID steady:3 >steady.log &
client=$!
sleep 1
stop -KILL
wait $client
if grep -q '^FAIL .*status 0x000c' steady.log; then
	pass "without a holder: $(cat steady.log)"
else
	fail "without a holder: $(cat steady.log)"
fi

title "kills, a restart and an upgrade with a holder"
ibsa hold /run/ibsa.hold >hold.log 2>&1 &
holder=$!
until [ -S /run/ibsa.hold ]; do sleep 0.05; done
start --holder /run/ibsa.hold
sa_client rxe0 $SA_GID steady:12 >steady.log &
client=$!
for signal in KILL KILL TERM; do
	sleep 0.7
	stop -$signal
	start --holder /run/ibsa.hold
	grep -q 'took over QP1' ibsa.log || fail "QP1 was not taken over after SIG$signal"
done
sleep 0.7
# An upgrade: the new process starts before the old one ends. A cache directory has one user.
old=$ibsa
cp -r /lab/cache /lab/cache2
ibsa --sm http://127.0.0.1:1 --transport umad --device rxe1 --cache-dir /lab/cache2 \
	--holder /run/ibsa.hold >new.log 2>&1 &
ibsa=$!
until grep -q 'serving generation' new.log; do sleep 0.05; done
kill -TERM $old
wait $old 2>/dev/null
sleep 0.7
wait $client || failed=1
cat steady.log
stop -TERM
# When the holder ends, the class is free again.
kill $holder
wait $holder 2>/dev/null
start
ask $SA_GID path:none
stop -TERM

title "at the SM's port, without its manager: killed, stopped and upgraded with a holder"
# Debian's saquery asks all the time; no Get may be answered with an error, such as 0x000c.
ibsa hold /run/ibsa.hold >hold.log 2>&1 &
holder=$!
until [ -S /run/ibsa.hold ]; do sleep 0.05; done
# at_port [OPTION...]
at_port() {
	start --at-sm-port --sm-state-dir /lab "$@"
	until grep -q 'reading SA requests' ibsa.log; do sleep 0.05; done
}
mount --bind sm_lid /sys/class/infiniband/rxe0/ports/1/sm_lid
# under_queries: runs the disturbance that its arguments name while two clients query.
under_queries() {
	: >queries.log
	sa_client rxe0 $SA_GID steady:12 >steady.log &
	client=$!
	(
		answered=0 late=0 wrong=0
		while kill -0 $client 2>/dev/null; do
			if query -t 3000 -c >one.log 2>&1 && grep -q 'Capability mask' one.log; then
				answered=$((answered + 1))
			elif grep -q 'timed out' one.log; then
				# The guest is slow: a restart of ibsa can take longer than saquery waits.
				late=$((late + 1))
			else
				wrong=$((wrong + 1))
				cat one.log >>queries.log
			fi
		done
		echo "$answered $late $wrong" >saquery.count
	) &
	asker=$!
	sleep 0.5
	"$@"
	wait $client || failed=1
	cat steady.log
	wait $asker
	read -r answered late wrong <saquery.count
	if [ "$answered" -gt 0 ] && [ "$wrong" = 0 ]; then
		pass "saquery: $answered queries answered, $late timeouts, no error"
	else
		fail "saquery: $answered queries answered, $late timeouts, $wrong errors"
		head -20 queries.log
	fi
}
disturb_holder() {
	for signal in KILL TERM KILL; do
		sleep 0.7
		stop -$signal
		at_port --holder /run/ibsa.hold
		grep -q 'took over QP1' ibsa.log || fail "QP1 was not taken over after SIG$signal"
	done
	sleep 0.7
	old=$ibsa
	rm -rf /lab/cache2
	cp -r /lab/cache /lab/cache2
	ibsa --sm http://127.0.0.1:1 --transport umad --at-sm-port --sm-state-dir /lab --device rxe1 \
		--cache-dir /lab/cache2 --holder /run/ibsa.hold >new.log 2>&1 &
	ibsa=$!
	until grep -q 'reading SA requests' new.log; do sleep 0.05; done
	kill -TERM $old
	wait $old 2>/dev/null
}
at_port --holder /run/ibsa.hold
under_queries disturb_holder
stop -TERM
kill $holder
wait $holder 2>/dev/null

title "at the SM's port, with the file shared by a manager: either is killed"
# sa_port_manager does what ibsm does at its port, which needs QP0.
manager() {
	sa_port_manager rxe1 /lab/sa-port >manager.log 2>&1 &
	manager=$!
	until grep -q listening manager.log; do sleep 0.05; done
}
disturb_shared() {
	# The file passes from the manager to ibsa, back, and to the manager's successor.
	for signal in KILL TERM; do
		sleep 0.7
		stop -$signal
		at_port
		grep -q 'took over QP1' ibsa.log || fail "the manager's file was not taken"
	done
	for round in 1 2; do
		sleep 0.7
		kill -KILL $manager
		wait $manager 2>/dev/null
		sleep 0.5
		manager
		until grep -q 'reads now' manager.log; do sleep 0.05; done
	done
	sleep 0.7
	stop -KILL
	at_port
}
manager
at_port
under_queries disturb_shared
stop -TERM
kill $manager
wait $manager 2>/dev/null
umount /sys/class/infiniband/rxe0/ports/1/sm_lid

[ $failed = 0 ]
