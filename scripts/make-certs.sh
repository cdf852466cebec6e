#!/usr/bin/env bash
# Creates a CA and certificates for a test bed: for an SM, responders, operators and agents.
#
#   scripts/make-certs.sh DIR [NAME...]
#
# NAME: host names and addresses in the https:// URL by which clients reach the SM, and agents a
# responder. localhost,
# 127.0.0.1, ::1 and this host's name are always included. Files that exist in DIR stay, and another
# run adds missing ones. To change the names, remove sm.pem and responder.pem and run again.
#
# With DIR/ca.key, certificates of any role can be issued. Outside a test bed, use the CA of your
# site. An SM's certificate is for servers (serverAuth) and has its names; an SM that follows
# another one (--follow) also needs the contents of a responder's. The certificates of responders,
# operators and agents are for clients (clientAuth) and have urn:ibsm:role:responder,
# urn:ibsm:role:admin, urn:ibsm:role:viewer or urn:ibsm:role:agent as a URI in the subject
# alternative name. A responder that serves agents (ibsa --agents) also needs serverAuth and names.
set -euo pipefail

if (($# == 0)) || [[ $1 == -* ]]; then
    sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$0"
    exit 1
fi
dir=$1
shift
days=${DAYS:-825}
umask 077
mkdir -p "$dir"
cd "$dir"

if [[ ! -e ca.pem ]]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
        -subj "/CN=ibsm test bed $(date -u +%Y-%m-%dT%H:%M:%SZ)" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign \
        -keyout ca.key -out ca.pem 2>/dev/null
fi

# issue NAME USAGE SUBJECT_ALTERNATIVE_NAMES
issue() {
    [[ -e $1.pem ]] && return
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" \
        -keyout "$1.key" -out "$1.csr" 2>/dev/null
    printf '%s\n' basicConstraints=critical,CA:FALSE keyUsage=critical,digitalSignature \
        "extendedKeyUsage=$2" "subjectAltName=$3" >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days "$days" -sha256 \
        -extfile "$1.ext" -out "$1.pem" 2>/dev/null
    rm -f "$1.csr" "$1.ext"
}

names=DNS:localhost,IP:127.0.0.1,IP:::1,DNS:$(uname -n)
for name in "$@"; do
    case $name in
    *:*) names+=,IP:$name ;;
    *[!0-9.]*) names+=,DNS:$name ;;
    *) names+=,IP:$name ;;
    esac
done
# An SM that follows another one (ibsm --follow) is also a client.
issue sm serverAuth,clientAuth "$names,URI:urn:ibsm:role:responder"
# A responder serves agents.
issue responder serverAuth,clientAuth "$names,URI:urn:ibsm:role:responder"
issue admin clientAuth URI:urn:ibsm:role:admin
issue viewer clientAuth URI:urn:ibsm:role:viewer
issue agent clientAuth URI:urn:ibsm:role:agent

cat <<TEXT
Files are in $PWD. Give each *.key only to the program that uses it; keep ca.key secret.
  ibsm     --tls-ca ca.pem --tls-cert sm.pem --tls-key sm.key --publish 0.0.0.0:7471
  ibsa     --tls-ca ca.pem --tls-cert responder.pem --tls-key responder.key --sm https://HOST:7471
  ibsa agent  --tls-ca ca.pem --tls-cert agent.pem --tls-key agent.key --from https://HOST:7473
  ibstorm  the same as ibsa
  ibsmctl  --tls-ca ca.pem --tls-cert admin.pem --tls-key admin.key --sm https://HOST:7471
           (viewer.pem: the commands that change nothing;
           or IBSM_TLS_CA, IBSM_TLS_CERT, IBSM_TLS_KEY, IBSM_SM in the environment)
TEXT
