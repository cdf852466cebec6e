//! `ibsmctl mgid`: MGIDs of IP over InfiniBand, from IP multicast groups and back (RFC 4391, 4).
//!
//! ```text
//! ff1S:401b:PPPP:0000:0000:0000:GGGG:GGGG   IPv4, the low 28 bits of the group
//! ff1S:601b:PPPP:GGGG:GGGG:GGGG:GGGG:GGGG   IPv6, the low 80 bits of the group
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ib_mad::types::{Gid, PKey};
use serde::Serialize;

use super::{CtlError, to_json};
use sm_config::parse_number;

/// The MGID to compose or decode.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    ibsmctl mgid 224.0.0.1 --pkey 0x8001        ff12:401b:8001::1\n  \
    ibsmctl mgid ff02::fb                       ff12:601b:ffff::fb\n  \
    ibsmctl mgid broadcast                      ff12:401b:ffff::ffff:ffff\n  \
    ibsmctl mgid ff12:401b:8001::1              decode it\n  \
    ibsmctl mgid 0xff12401b80010000:0x1         the same, in the form of opafm.xml")]
pub struct Options {
    /// IPv4 or IPv6 multicast group, or `broadcast`; or an MGID.
    #[arg(value_name = "GROUP|MGID")]
    what: String,
    /// P_Key of the partition; the membership bit is set.
    #[arg(short, long, default_value = "0xffff")]
    pkey: String,
    /// Scope: link-local, site-local, organization-local, global or 1 to 15.
    #[arg(short, long, default_value = "link-local")]
    scope: String,
    /// Read the argument as an MGID, even if it looks like an IPv6 group.
    #[arg(short, long)]
    decompose: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

const SCOPES: &[(&str, u8)] =
    &[("link-local", 2), ("site-local", 5), ("organization-local", 8), ("global", 0xE)];

const IPV4: u16 = 0x401B;
const IPV6: u16 = 0x601B;
/// Prefix of MGIDs that OpenSM and ibsm assign when a client leaves the choice to the SA.
const MADE: u16 = 0xA01B;

/// An MGID and its meaning.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Known {
    mgid: String,
    /// The MGID as two halves, in the form of `opafm.xml`.
    halves: String,
    scope: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope_name: Option<&'static str>,
    protocol: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pkey: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
}

/// Runs the command.
pub(super) fn run(options: &Options) -> Result<String, CtlError> {
    let (mgid, made) = match parse(&options.what, options.decompose) {
        Some(Parsed::Group(group)) => {
            let pkey = parse_number(&options.pkey)
                .and_then(|pkey| u16::try_from(pkey).ok())
                .filter(|pkey| pkey & 0x7FFF != 0)
                .ok_or_else(|| argument("--pkey", "a P_Key such as 0x8001", &options.pkey))?;
            let scope = scope(&options.scope).ok_or_else(|| {
                let expected = "link-local, site-local, organization-local, global or 1 to 15";
                argument("--scope", expected, &options.scope)
            })?;
            (compose(group, PKey(pkey), scope), true)
        }
        Some(Parsed::Mgid(mgid)) => (mgid, false),
        None => {
            let expected = "an IP multicast group, 'broadcast', or an MGID";
            return Err(argument("GROUP|MGID", expected, &options.what));
        }
    };
    let known = decompose(mgid);
    if options.json {
        return Ok(to_json(&known));
    }
    Ok(if made { known.mgid + "\n" } else { known.render() })
}

fn argument(what: &'static str, expected: &'static str, got: &str) -> CtlError {
    CtlError::Argument { what, expected, got: got.to_owned() }
}

#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    Group(IpAddr),
    Mgid(Gid),
}

/// Parses an argument. An MGID looks like an IPv6 group; an IPoIB MGID is recognized by its
/// signature.
fn parse(text: &str, is_mgid: bool) -> Option<Parsed> {
    if text.eq_ignore_ascii_case("broadcast") {
        return Some(Parsed::Group(Ipv4Addr::BROADCAST.into()));
    }
    if let Some(mgid) = parse_mgid(text) {
        let known = matches!(signature(mgid), IPV4 | IPV6 | MADE);
        let is_halves = text.starts_with("0x");
        if is_mgid || known || is_halves {
            return Some(Parsed::Mgid(mgid));
        }
    }
    let group: IpAddr = text.parse().ok().filter(|_| !is_mgid)?;
    let is_broadcast = group == IpAddr::from(Ipv4Addr::BROADCAST);
    (group.is_multicast() || is_broadcast).then_some(Parsed::Group(group))
}

/// An MGID as an IPv6 address or as two halves.
pub(super) fn parse_mgid(text: &str) -> Option<Gid> {
    let gid = match text.parse::<Ipv6Addr>() {
        Ok(address) => Gid(address.octets()),
        Err(_) => {
            let (high, low) = text.split_once(':')?;
            let (high, low) = (parse_number(high)?, parse_number(low)?);
            Gid((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
        }
    };
    gid.is_multicast().then_some(gid)
}

fn signature(mgid: Gid) -> u16 {
    u16::from_be_bytes([mgid.0[2], mgid.0[3]])
}

fn scope(text: &str) -> Option<u8> {
    let named = SCOPES.iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
    let number = || parse_number(text).and_then(|number| u8::try_from(number).ok());
    named.map(|&(_, scope)| scope).or_else(number).filter(|scope| (1..=15).contains(scope))
}

fn compose(group: IpAddr, pkey: PKey, scope: u8) -> Gid {
    let mut mgid = [0; 16];
    mgid[0] = 0xFF;
    mgid[1] = 0x10 | scope;
    mgid[4..6].copy_from_slice(&(pkey.0 | 0x8000).to_be_bytes());
    let signature = match group {
        IpAddr::V4(group) => {
            let mut octets = group.octets();
            if group != Ipv4Addr::BROADCAST {
                octets[0] &= 0x0F;
            }
            mgid[12..].copy_from_slice(&octets);
            IPV4
        }
        IpAddr::V6(group) => {
            mgid[6..].copy_from_slice(&group.octets()[6..]);
            IPV6
        }
    };
    mgid[2..4].copy_from_slice(&signature.to_be_bytes());
    Gid(mgid)
}

/// The IP multicast group of an MGID of IP over InfiniBand.
pub(crate) fn ip_group(mgid: Gid) -> Option<String> {
    decompose(mgid).group
}

fn decompose(mgid: Gid) -> Known {
    let scope = mgid.0[1] & 0x0F;
    let bits = u128::from_be_bytes(mgid.0);
    let pkey = || Some(format!("{:#06x}", u16::from_be_bytes([mgid.0[4], mgid.0[5]])));
    let (protocol, pkey, group) = match signature(mgid) {
        IPV4 => {
            let mut octets = [mgid.0[12], mgid.0[13], mgid.0[14], mgid.0[15]];
            if octets != [0xFF; 4] {
                octets[0] = octets[0] & 0x0F | 0xE0;
            }
            (Some("ipv4"), pkey(), Some(Ipv4Addr::from(octets).to_string()))
        }
        IPV6 => {
            let mut octets = [0; 16];
            octets[0] = 0xFF;
            octets[1] = scope;
            octets[6..].copy_from_slice(&mgid.0[6..]);
            (Some("ipv6"), pkey(), Some(Ipv6Addr::from(octets).to_string()))
        }
        _ => (None, None, None),
    };
    Known {
        mgid: Ipv6Addr::from(mgid.0).to_string(),
        halves: format!("{:#018x}:{:#018x}", (bits >> 64) as u64, bits as u64),
        scope,
        scope_name: SCOPES.iter().find(|(_, number)| *number == scope).map(|(name, _)| *name),
        protocol,
        pkey,
        group,
    }
}

impl Known {
    fn render(&self) -> String {
        let scope = self.scope_name.map_or_else(String::new, |name| format!(" ({name})"));
        let what = match (self.protocol, &self.group, &self.pkey) {
            (Some(protocol), Some(group), Some(pkey)) => {
                format!("{protocol} group {group}, P_Key {pkey}")
            }
            _ => "not an IPoIB group".to_owned(),
        };
        format!("{} = {}: {what}, scope {}{scope}\n", self.mgid, self.halves, self.scope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn composed(group: &str, pkey: u16, scope: u8) -> String {
        match parse(group, false) {
            Some(Parsed::Group(group)) => decompose(compose(group, PKey(pkey), scope)).mgid,
            other => panic!("{group}: {other:?}"),
        }
    }

    #[test]
    fn mgids_are_composed_as_the_kernel_does() {
        assert_eq!(composed("224.0.0.1", 0x8001, 2), "ff12:401b:8001::1");
        assert_eq!(composed("239.1.2.3", 0x0001, 5), "ff15:401b:8001::f01:203");
        assert_eq!(composed("broadcast", 0xFFFF, 2), "ff12:401b:ffff::ffff:ffff");
        assert_eq!(composed("ff02::fb", 0xFFFF, 2), "ff12:601b:ffff::fb");
        assert_eq!(composed("ff02::1:ff00:1234", 0x8002, 2), "ff12:601b:8002::1:ff00:1234");
    }

    #[test]
    fn mgids_are_decoded() {
        let described = |text: &str| match parse(text, false) {
            Some(Parsed::Mgid(mgid)) => decompose(mgid).render(),
            other => panic!("{text}: {other:?}"),
        };
        let expected = "ff12:401b:8001::f01:203 = 0xff12401b80010000:0x000000000f010203: ipv4 \
                        group 239.1.2.3, P_Key 0x8001, scope 2 (link-local)\n";
        assert_eq!(described("ff12:401b:8001::f01:203"), expected);
        assert_eq!(described("0xff12401b80010000:0x0f010203"), expected);
        assert!(described("ff12:601b:8001::fb").contains("ipv6 group ff02::fb, P_Key 0x8001"));
        assert!(described("ff12:401b:ffff::ffff:ffff").contains("group 255.255.255.255"));
        assert!(described("0xff15a01b00000000:0x1").contains("not an IPoIB group, scope 5"));
    }

    #[test]
    fn text_that_is_neither_is_rejected() {
        for text in ["10.0.0.1", "fe80::1", "x", "0x1:0x2", ""] {
            assert_eq!(parse(text, false), None, "{text}");
        }
        assert!(matches!(parse("ff15:4001::1", true), Some(Parsed::Mgid(_))));
        assert!(matches!(parse("ff15:4001::1", false), Some(Parsed::Group(_))));
    }
}
