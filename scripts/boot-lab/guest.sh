# Checks of the packages in a booted Debian system; lab.service runs it as root. Prints PASS and
# FAIL lines, and LAB-RC with the exit status at the end.

failed=0
check() {
    local what=$1
    shift
    if "$@" >/tmp/output 2>&1; then
        echo "PASS $what"
    else
        echo "FAIL $what"
        tail -n 15 /tmp/output | sed 's/^/     /'
        failed=1
    fi
}
# until_true SECONDS COMMAND...
until_true() {
    local left=$1
    shift
    while ! "$@"; do
        ((left-- > 0)) || return 1
        sleep 1
    done
}
active() { systemctl is-active --quiet "$@"; }
inactive() { ! active "$1"; }
is_up() { ibsmctl status --json | grep '"subnet_up": *true' >/dev/null; }
serves() { ibsmctl status --json | grep '"current": *true' >/dev/null; }
# has USER FILE...: the user owns them.
has() { [[ $(stat -c %U "${@:2}" | sort -u) == "$1" ]]; }
main_pid() { systemctl show --value -p MainPID "$1"; }
restarts() { systemctl show --value -p NRestarts "$1"; }
# restarted NAME COUNT: systemd has started it again more than COUNT times.
restarted() { (($(restarts "$1") > $2)); }

export PATH=$PATH:/usr/sbin:/sbin
cd /lab
systemd=$(systemctl --version | awk 'NR == 1 { print $2 }')
echo "Debian $(cat /etc/debian_version), systemd $systemd, Linux $(uname -r)"

# --- Installation.
check "dpkg installs both packages beside opensm" dpkg -i ibsm_*.deb ibsa_*.deb
check "nothing is started by it" eval 'inactive ibsm && inactive ibsa'
check "the user ibsm exists" getent passwd ibsm
check "man finds ibsm, ibsmctl and ibsa" eval 'for page in ibsm ibsmctl ibsa; do man -w $page; done'
check "ibsm check finds no mistake" runuser -u ibsm -- ibsm check

# --- Services, on a simulated fabric.
./ibfabric generate fat-tree --levels 2 --radix 8 --hosts 16 -o small.net 2>/dev/null
systemd-run --quiet --unit fabric /lab/ibfabric serve --socket lab /lab/small.net
sed -i 's/^OPTIONS=.*/OPTIONS="--transport ibsim --socket lab"/' /etc/default/ibsm
check "systemctl starts both; Type=notify" systemctl enable --now ibsm ibsa
check "the subnet is up" until_true 60 is_up
check "the responder serves" until_true 60 serves
check "state and cache belong to the user ibsm" \
    has ibsm /var/lib/ibsm /var/lib/ibsm/guid2lid /var/cache/ibsa
check "another user is refused" eval '! runuser -u nobody -- ibsmctl status'
check "saquery's query is answered" \
    ./ibstorm --transport ibsim --socket lab --node "node00003 HCA-1" --sm http://127.0.0.1:7471 \
    --queries 100 --concurrency 4 --check
check "systemctl reload" systemctl reload ibsm
check "logrotate accepts the files" logrotate -d /etc/logrotate.d/ibsm /etc/logrotate.d/ibsa

# --- Upgrades under a storm.
storm() {
    ./ibstorm --transport ibsim --socket lab --node "node00005 HCA-1" --sm http://127.0.0.1:7471 \
        --rate 200 --duration 40s --timeout 500ms --retries 40 --check \
        >/tmp/storm 2>/tmp/storm.log &
    storm=$!
    sleep 5
}
upgraded() { dpkg -i "$1"_*.deb && until_true 30 active "$1" && until_true 60 is_up; }
asked() { journalctl -u ibsm --since "$1" | grep -i 'register again' | grep -v 'not asked'; }
for name in ibsa ibsm; do
    before=$(main_pid $name) since=$(date '+%Y-%m-%d %H:%M:%S')
    storm
    check "an upgrade of $name restarts it" upgraded $name
    check "$name runs as another process" [ "$(main_pid $name)" != "$before" ]
    check "no query is lost in the upgrade of $name" wait $storm
    sed -n '/answers\|unanswered\|lost/p' /tmp/storm | head -n 4 | sed 's/^/     /'
    check "no client is asked to register again" eval "! asked '$since'"
done

# --- Deaths.
count=$(restarts ibsm)
kill -9 "$(main_pid ibsm)"
check "ibsm is started again when it is killed" until_true 30 restarted ibsm "$count"
check "the subnet is up again" until_true 60 is_up
mkdir -p /run/systemd/system/ibsa.service.d
printf '[Service]\nWatchdogSec=5\n' >/run/systemd/system/ibsa.service.d/lab.conf
systemctl daemon-reload
systemctl restart ibsa
count=$(restarts ibsa)
sleep 12
check "the watchdog leaves a healthy ibsa alone" [ "$(restarts ibsa)" = "$count" ]
kill -STOP "$(main_pid ibsa)"
check "the watchdog ends an ibsa that stands still" until_true 60 restarted ibsa "$count"
check "the responder serves again" until_true 60 serves

# --- opensm, and back. Without an InfiniBand port it fails, but stops ibsm all the same.
systemctl start opensm >/dev/null 2>&1
check "a start of opensm stops ibsm" until_true 30 inactive ibsm
check "and back" eval 'systemctl start ibsm && until_true 60 is_up'

# --- Removal.
check "dpkg removes both" dpkg --remove ibsm ibsa
check "the services are stopped" eval 'inactive ibsm && inactive ibsa'
check "settings and state stay" eval '[ -e /etc/default/ibsm ] && [ -e /var/lib/ibsm/guid2lid ]'
check "dpkg purges both" dpkg --purge ibsm ibsa
left() { find /etc /usr /var -xdev \( -name 'ibsm*' -o -name 'ibsa*' \); }
check "nothing is left" eval '[[ -z $(left | tee /dev/stderr) ]]'

echo "LAB-RC $failed"
