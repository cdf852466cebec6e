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

#[cfg(test)]
mod tests {
    use super::*;

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
