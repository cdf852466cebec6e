//! Lists of names as Slurm writes them: `node[001-004,007],login`.

use std::collections::BTreeMap;

/// The names as a hostlist. Names that end in numbers are joined, by number of digits.
pub(super) fn hostlist<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut alone = Vec::new();
    let mut numbered: BTreeMap<(&str, usize), Vec<u64>> = BTreeMap::new();
    for name in names {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &name[prefix.len()..];
        match digits.parse() {
            Ok(number) if digits.len() <= 18 => {
                // Without a leading zero, 9 and 10 are in one range.
                let width = if digits.starts_with('0') { digits.len() } else { 0 };
                numbered.entry((prefix, width)).or_default().push(number);
            }
            _ => alone.push(name.to_owned()),
        }
    }
    // 099 and 100 are in one range, too.
    let widths: Vec<(&str, usize)> = numbered.keys().copied().filter(|(_, w)| *w > 0).collect();
    for (prefix, width) in widths {
        let Some(plain) = numbered.get_mut(&(prefix, 0)) else { continue };
        let (same, rest) = plain.iter().partition(|number| number.to_string().len() == width);
        *plain = rest;
        numbered.entry((prefix, width)).or_default().extend::<Vec<u64>>(same);
    }
    let mut parts: Vec<String> = numbered
        .into_iter()
        .filter(|(_, numbers)| !numbers.is_empty())
        .map(|((prefix, width), numbers)| ranges(prefix, width, numbers))
        .collect();
    parts.extend(alone);
    parts.sort();
    parts.join(",")
}

fn ranges(prefix: &str, width: usize, mut numbers: Vec<u64>) -> String {
    numbers.sort_unstable();
    numbers.dedup();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    if let [(first, last)] = ranges[..]
        && first == last
    {
        return format!("{prefix}{first:0width$}");
    }
    let part = |(first, last): &(u64, u64)| match first == last {
        true => format!("{first:0width$}"),
        false => format!("{first:0width$}-{last:0width$}"),
    };
    format!("{prefix}[{}]", ranges.iter().map(part).collect::<Vec<_>>().join(","))
}

/// The names of a hostlist, at most so many. Fails with the reason.
pub(crate) fn expanded(list: &str, most: usize) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    // Commas in brackets divide ranges, not names.
    let mut depth = 0;
    let parts = list.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    for part in parts.map(str::trim).filter(|part| !part.is_empty()) {
        expand("", part, most, &mut names)?;
    }
    Ok(names)
}

/// Adds the names that begin with `before` and go on as `rest` has it.
fn expand(before: &str, rest: &str, most: usize, names: &mut Vec<String>) -> Result<(), String> {
    let malformed = || format!("'{rest}' is no list of hosts such as node[01-16,20]");
    let Some((prefix, rest_of_ranges)) = rest.split_once('[') else {
        if rest.contains(']') {
            return Err(malformed());
        }
        if names.len() == most {
            return Err(format!("more than {most} hosts"));
        }
        names.push(format!("{before}{rest}"));
        return Ok(());
    };
    let (ranges, after) = rest_of_ranges.split_once(']').ok_or_else(malformed)?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_number = |text: &str| {
            (1..=18).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !is_number(first) || !is_number(last) {
            return Err(malformed());
        }
        let width = if first.starts_with('0') { first.len() } else { 0 };
        let number = |text: &str| text.parse::<u64>().map_err(|_| malformed());
        for number in number(first)?..=number(last)? {
            let name = format!("{before}{prefix}{number:0width$}");
            expand(&name, after, most, names)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostlist_is_expanded_within_a_limit() {
        let list = |text: &str| expanded(text, 5);
        assert_eq!(list("a, b,,c").unwrap(), ["a", "b", "c"]);
        let ranges = list("n[8-10,098],login").unwrap();
        assert_eq!(ranges, ["n8", "n9", "n10", "n098", "login"]);
        assert_eq!(list("r[0-1]n[01-02]x").unwrap(), ["r0n01x", "r0n02x", "r1n01x", "r1n02x"]);
        assert!(list("").unwrap().is_empty() && list("n[3-1]").unwrap().is_empty());
        for wrong in ["n[1", "n1]", "n[]", "n[a-b]", "n[1-]", "n[1-2-3]", "n[[1]]", "n[-1]"] {
            assert!(list(wrong).is_err(), "{wrong}");
        }
        assert_eq!(list("n[1-6]").unwrap_err(), "more than 5 hosts");
        assert!(list("n[0-999999999999999999]").is_err() && list("a,b,c,d,e,f").is_err());
    }

    #[test]
    fn names_are_joined_by_their_numbers() {
        let list = |names: &[&str]| hostlist(names.iter().copied());
        assert_eq!(list(&["n1", "n2", "n3", "n7"]), "n[1-3,7]");
        assert_eq!(list(&["n9", "n10"]), "n[9-10]");
        assert_eq!(list(&["n098", "n099", "n100"]), "n[098-100]");
        assert_eq!(list(&["login", "n5", "gpu-01"]), "gpu-01,login,n5");
        assert_eq!(list(&[]), "");
    }
}
