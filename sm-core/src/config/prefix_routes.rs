//! `prefix-routes.conf`: which router leads to another subnet (OpenSM manual, "PREFIX ROUTES").
//!
//! A line has a 64-bit prefix and the GUID of a router's port, both in hexadecimal with or without
//! `0x`; an asterisk stands for any. `#` begins a comment. The first line that fits a request counts.

use std::path::Path;

use ib_mad::types::Guid;
use sa_proto::snapshot::PrefixRoute;

use super::site::Remarks;

/// Why a line is passed over.
#[derive(Debug, thiserror::Error)]
enum Fault<'a> {
    #[error(
        "'{0}' is no prefix; write up to 16 hexadecimal digits, such as 0xfec0000000000001, or *"
    )]
    Prefix(&'a str),
    #[error("prefix {0} has no router; write the GUID of its port behind it, or *")]
    NoRouter(&'a str),
    #[error(
        "'{0}' is no port GUID; write up to 16 hexadecimal digits, such as 0x0002c90300000001, or *"
    )]
    Router(&'a str),
}

/// Reads the text of such a file; `path` is for remarks. Lines that make no sense are passed over, as
/// OpenSM does, and remarked on.
pub fn parse(path: &Path, text: &str, remarks: &mut Remarks) -> Vec<PrefixRoute> {
    let mut routes = Vec::new();
    let mut all_follow_in_vain = None;
    for (line, content) in (1..).zip(text.lines()) {
        let mut words = content.split('#').next().unwrap_or_default().split_whitespace();
        let Some(prefix) = words.next() else { continue };
        let route = match route(prefix, words.next()) {
            Ok(route) => route,
            Err(fault) => {
                remarks.pass_over(path, line, &fault.to_string());
                continue;
            }
        };
        if let Some(extra) = words.next() {
            let text = format!("'{extra}' and what follows is passed over");
            remarks.add(path, Some(line), &text);
        }
        if let Some(first) = all_follow_in_vain {
            let text = format!("never used: line {first} is for all prefixes and routers");
            remarks.add(path, Some(line), &text);
        } else if route == (PrefixRoute { prefix: None, router: None }) {
            all_follow_in_vain = Some(line);
        }
        routes.push(route);
    }
    routes
}

fn route<'a>(prefix: &'a str, router: Option<&'a str>) -> Result<PrefixRoute, Fault<'a>> {
    let router = router.ok_or(Fault::NoRouter(prefix));
    Ok(PrefixRoute {
        prefix: id(prefix).map_err(|()| Fault::Prefix(prefix))?,
        router: router.and_then(|guid| id(guid).map_err(|()| Fault::Router(guid)))?.map(Guid),
    })
}

/// A number that means something, or `None` for any: `*`, and 0 as in OpenSM.
fn id(word: &str) -> Result<Option<u64>, ()> {
    if word == "*" {
        return Ok(None);
    }
    let digits = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")).unwrap_or(word);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(());
    }
    let value = u64::from_str_radix(digits, 16).map_err(|_| ())?;
    Ok((value != 0).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(text: &str) -> (Vec<PrefixRoute>, Vec<String>) {
        let mut remarks = Remarks::default();
        let routes = parse(Path::new("routes"), text, &mut remarks);
        (routes, remarks.into_lines())
    }

    #[test]
    fn prefixes_and_guids_are_hexadecimal_and_either_may_be_any() {
        let text = "# our neighbours\n\n0xfec0000000000001 0x2c9\nfec0000000000002 * # any router\n* 2c9# all\n";
        let route = |prefix, router: Option<u64>| PrefixRoute { prefix, router: router.map(Guid) };
        let expected = vec![
            route(Some(0xfec0_0000_0000_0001), Some(0x2c9)),
            route(Some(0xfec0_0000_0000_0002), None),
            route(None, Some(0x2c9)),
        ];
        assert_eq!(routes(text), (expected, vec![]));
    }

    #[test]
    fn a_line_that_makes_no_sense_is_passed_over_and_told() {
        for (text, reason) in [
            (
                "fec0::1 *",
                "1: 'fec0::1' is no prefix; write up to 16 hexadecimal digits, such as 0xfec0000000000001, or *",
            ),
            (
                "\n* # nobody",
                "2: prefix * has no router; write the GUID of its port behind it, or *",
            ),
            (
                "* any",
                "1: 'any' is no port GUID; write up to 16 hexadecimal digits, such as 0x0002c90300000001, or *",
            ),
            (
                "12345678123456781 *",
                "1: '12345678123456781' is no prefix; write up to 16 hexadecimal digits, such as 0xfec0000000000001, or *",
            ),
        ] {
            let (line, reason) = reason.split_once(": ").unwrap();
            let (found, remarks) = routes(&format!("{text}\n0x1 0x2\n"));
            assert_eq!(
                (found.len(), remarks),
                (1, vec![format!("routes:{line}: passed over: {reason}")])
            );
        }
    }

    /// `--strict` started with them.
    #[test]
    fn a_line_that_is_passed_over_is_a_mistake_and_one_that_is_read_is_none() {
        let mut remarks = Remarks::default();
        parse(Path::new("routes"), "0x1 0x2 x\n* any\n", &mut remarks);
        assert_eq!(remarks.mistakes().len(), 1);
        assert!(remarks.mistakes()[0].starts_with("routes:2: passed over: 'any'"));
    }

    #[test]
    fn what_is_never_used_is_remarked_on() {
        let (routes, remarks) = routes("* * x\n0x1 0x2\n");
        assert_eq!(routes.len(), 2);
        assert_eq!(
            remarks,
            [
                "routes:1: 'x' and what follows is passed over",
                "routes:2: never used: line 1 is for all prefixes and routers",
            ]
        );
    }
}
