//! Parses `prefix-routes.conf`, which selects the router to another subnet (OpenSM manual, "PREFIX
//! ROUTES").
//!
//! A line has a 64-bit prefix and the GUID of a router's port, both in hexadecimal with or without
//! `0x`; an asterisk matches any. `#` begins a comment. The first line that matches a request is
//! used.

use std::path::Path;

use ib_mad::types::Guid;
use sa_proto::snapshot::PrefixRoute;

use super::remarks::Remarks;

/// Why a line is ignored.
#[derive(Debug, thiserror::Error)]
enum Fault<'a> {
    #[error(
        "'{0}' is not a prefix; use up to 16 hexadecimal digits, such as 0xfec0000000000001, or *"
    )]
    Prefix(&'a str),
    #[error("prefix {0} has no router; add the GUID of the router's port, or *")]
    NoRouter(&'a str),
    #[error(
        "'{0}' is not a port GUID; use up to 16 hexadecimal digits, such as 0x0002c90300000001, \
         or *"
    )]
    Router(&'a str),
}

/// Parses the text of such a file; `path` is for remarks. As in OpenSM, invalid lines are ignored;
/// they are reported.
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
            let text = format!("'{extra}' and the rest of the line are ignored");
            remarks.add(path, Some(line), &text);
        }
        if let Some(first) = all_follow_in_vain {
            let text = format!("never used: line {first} matches all prefixes and routers");
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

/// Parses a number; `None` means any: `*`, and 0 as in OpenSM.
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
        let text = "# our neighbours\n\n0xfec0000000000001 0x2c9\nfec0000000000002 * # any \
            router\n* 2c9# all\n";
        let route = |prefix, router: Option<u64>| PrefixRoute { prefix, router: router.map(Guid) };
        let expected = vec![
            route(Some(0xfec0_0000_0000_0001), Some(0x2c9)),
            route(Some(0xfec0_0000_0000_0002), None),
            route(None, Some(0x2c9)),
        ];
        assert_eq!(routes(text), (expected, vec![]));
    }

    #[test]
    fn an_invalid_line_is_ignored_and_reported() {
        for (text, reason) in [
            (
                "fec0::1 *",
                "1: 'fec0::1' is not a prefix; use up to 16 hexadecimal digits, such as \
                 0xfec0000000000001, or *",
            ),
            ("\n* # nobody", "2: prefix * has no router; add the GUID of the router's port, or *"),
            (
                "* any",
                "1: 'any' is not a port GUID; use up to 16 hexadecimal digits, such as \
                 0x0002c90300000001, or *",
            ),
            (
                "12345678123456781 *",
                "1: '12345678123456781' is not a prefix; use up to 16 hexadecimal digits, such as \
                 0xfec0000000000001, or *",
            ),
        ] {
            let (line, reason) = reason.split_once(": ").unwrap();
            let (found, remarks) = routes(&format!("{text}\n0x1 0x2\n"));
            assert_eq!(
                (found.len(), remarks),
                (1, vec![format!("routes:{line}: line ignored: {reason}")])
            );
        }
    }

    /// Regression: `--strict` started with such lines.
    #[test]
    fn an_ignored_line_is_a_mistake_and_an_odd_line_that_is_read_is_not() {
        let mut remarks = Remarks::default();
        parse(Path::new("routes"), "0x1 0x2 x\n* any\n", &mut remarks);
        assert_eq!(remarks.mistakes().len(), 1);
        assert!(remarks.mistakes()[0].starts_with("routes:2: line ignored: 'any'"));
    }

    #[test]
    fn unused_lines_are_reported() {
        let (routes, remarks) = routes("* * x\n0x1 0x2\n");
        assert_eq!(routes.len(), 2);
        assert_eq!(
            remarks,
            [
                "routes:1: 'x' and the rest of the line are ignored",
                "routes:2: never used: line 1 matches all prefixes and routers",
            ]
        );
    }
}
