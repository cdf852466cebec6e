//! Parses values of elements.

use ib_mad::types::{Gid, Guid, Mtu, PKey, Rate, Sl};
use sa_proto::snapshot::IdMatch;

use super::super::value::parse_number;
use super::xml::{Element, Fault};
use super::{HOQ_LIFE_INFINITE, Reason};

/// Longest name, bytes.
const NAME_LEN_MAX: usize = 64;

/// Returns the value, or an error that states the expected form.
fn value<T>(element: &Element, expected: &'static str, value: Option<T>) -> Result<T, Fault> {
    value.ok_or_else(|| {
        let (tag, got) = (element.name.clone(), element.text.chars().take(80).collect());
        (element.line, Reason::Value { tag, expected, got })
    })
}

/// Parses a name of at most 64 bytes.
pub(super) fn name(element: &Element) -> Result<String, Fault> {
    let fits = !element.text.is_empty() && element.text.len() <= NAME_LEN_MAX;
    value(element, "a name of 1 to 64 characters", fits.then(|| element.text.clone()))
}

/// Parses 0 or 1.
pub(super) fn flag(element: &Element) -> Result<bool, Fault> {
    let flag = match element.text.as_str() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    };
    value(element, "0 or 1", flag)
}

/// Parses a number up to `last`.
pub(super) fn number(element: &Element, last: u64, expected: &'static str) -> Result<u64, Fault> {
    value(element, expected, parse_number(&element.text).filter(|&number| number <= last))
}

/// Parses a service level.
pub(super) fn sl(element: &Element) -> Result<Sl, Fault> {
    let number = number(element, 15, "a service level of 0 to 15")?;
    Ok(Sl::from_low_bits(number as u16))
}

/// Parses a P_Key in hexadecimal, with or without `0x`, and clears its membership bit.
pub(super) fn pkey(element: &Element) -> Result<PKey, Fault> {
    let text = &element.text;
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let pkey = u16::from_str_radix(digits, 16).ok().map(|pkey| PKey(pkey & 0x7FFF));
    let expected = "a P_Key in hexadecimal, 0x1 to 0x7fff";
    value(element, expected, pkey.filter(|pkey| pkey.0 != 0))
}

/// Parses a GUID.
pub(super) fn guid(element: &Element) -> Result<Guid, Fault> {
    value(element, "a GUID such as 0x0011750101671ed9", parse_number(&element.text).map(Guid))
}

/// Parses a subnet prefix.
pub(super) fn prefix(element: &Element) -> Result<u64, Fault> {
    let expected = "a subnet prefix such as 0xfe80000000000000";
    value(element, expected, parse_number(&element.text))
}

/// Parses an MTU in bytes; one larger than InfiniBand's largest is unlimited.
pub(super) fn mtu(element: &Element) -> Result<Option<Mtu>, Fault> {
    let text = &element.text;
    let bytes = text.parse::<u16>().ok();
    let known = Mtu::ALL.into_iter().find(|mtu| Some(mtu.bytes()) == bytes);
    let unlimited = text.eq_ignore_ascii_case("unlimited") || matches!(bytes, Some(8192 | 10240));
    let expected = "256, 512, 1024, 2048, 4096, 8192, 10240 or Unlimited";
    value(element, expected, known.map(Some).or(unlimited.then_some(None)))
}

/// Parses a rate such as `25g`; the result is the largest InfiniBand rate that is not larger.
pub(super) fn rate(element: &Element) -> Result<Option<Rate>, Fault> {
    if element.text.eq_ignore_ascii_case("unlimited") {
        return Ok(None);
    }
    let expected = "a rate such as 25g, 50g, 100g, at least 2.5g, or Unlimited";
    let mbps = element.text.strip_suffix(['g', 'G']).and_then(|gigabits| {
        let (whole, tenths) = gigabits.trim().split_once('.').unwrap_or((gigabits.trim(), "0"));
        let digit = |text: &str| text.len() == 1 && text.bytes().all(|b| b.is_ascii_digit());
        let tenths: u32 = tenths.parse().ok().filter(|_| digit(tenths))?;
        whole.parse::<u16>().ok().map(|whole| u32::from(whole) * 1000 + tenths * 100)
    });
    let no_greater = |mbps| Rate::BY_VALUE.into_iter().rfind(|rate| rate.mbps() <= mbps);
    value(element, expected, mbps.and_then(no_greater).map(Some))
}

/// Parses a factor of 1 to 256; returns its binary logarithm, rounded up.
pub(super) fn shift(element: &Element) -> Result<u8, Fault> {
    let number = number(element, 256, "a factor of 1 to 256")?;
    let shift = (number > 0).then(|| number.next_power_of_two().trailing_zeros() as u8);
    value(element, "a factor of 1 to 256", shift)
}

/// Parses a share of the bandwidth, 1 to 100 percent.
pub(super) fn percent(element: &Element) -> Result<u8, Fault> {
    let number = element.text.strip_suffix('%').and_then(|text| text.trim_end().parse().ok());
    value(element, "a share such as 10%, from 1% to 100%", number.filter(|n| (1..=100).contains(n)))
}

/// Parses a time that a packet may be at the head of a queue; returns the least n with 4.096 µs ×
/// 2^n not shorter (IBA 14.2.5.6).
pub(super) fn hoq_life(element: &Element) -> Result<u8, Fault> {
    if element.text.eq_ignore_ascii_case("infinite") {
        return Ok(HOQ_LIFE_INFINITE);
    }
    let expected = "a time such as 8ms, in ns, us, ms, s, m or h, or infinite";
    let text = &element.text;
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit_ns: Option<u64> = match unit.trim().to_ascii_lowercase().as_str() {
        "ns" => Some(1),
        "us" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        "m" => Some(60_000_000_000),
        "h" => Some(3_600_000_000_000),
        _ => None,
    };
    let time_ns = number.parse::<u64>().ok().zip(unit_ns).map(|(n, unit)| n.saturating_mul(unit));
    value(element, expected, time_ns.map(lifetime_code))
}

/// The least n with 4.096 µs × 2^n not shorter than a time.
fn lifetime_code(time_ns: u64) -> u8 {
    let units = time_ns.div_ceil(4096).max(1);
    units.checked_next_power_of_two().map_or(u8::MAX, |power| power.trailing_zeros() as u8)
}

/// Parses a single Service ID.
pub(super) fn service_id(element: &Element) -> Result<IdMatch, Fault> {
    let id = parse_number(&element.text).map(|id| IdMatch::Range(id, id));
    value(element, "a Service ID such as 0x00000000010603DB", id)
}

/// Parses `first-last`.
pub(super) fn service_id_range(element: &Element) -> Result<IdMatch, Fault> {
    let range = pair(&element.text, '-', parse_number)
        .filter(|(first, last)| first <= last)
        .map(|(first, last)| IdMatch::Range(first, last));
    value(element, "Service IDs as first-last, such as 0x1-0xf", range)
}

/// Parses `value*mask`.
pub(super) fn service_id_masked(element: &Element) -> Result<IdMatch, Fault> {
    let masked = pair(&element.text, '*', parse_number)
        .map(|(value, mask)| IdMatch::Masked { value: value & mask, mask });
    value(element, "a Service ID and a mask as value*mask, such as 0x10000*0xffff0000", masked)
}

/// Parses a single MGID, `high:low`.
pub(super) fn mgid(element: &Element) -> Result<Gid, Fault> {
    let expected = "an MGID as two halves, such as 0xff12401b80010000:0x00000000ffffffff";
    value(element, expected, halves(&element.text).map(gid).filter(|mgid| mgid.is_multicast()))
}

/// Parses `high:low` of an application: a single MGID as value and mask.
pub(super) fn mgid_single(element: &Element) -> Result<(Gid, Gid), Fault> {
    let expected = "an MGID as two halves, such as 0xff12401b80010000:0x00000000ffffffff";
    let single = halves(&element.text).map(|mgid| (gid(mgid), gid(u128::MAX)));
    value(element, expected, single)
}

/// Parses `high:low-high:low`, as values and masks that cover the range exactly.
pub(super) fn mgid_range(element: &Element) -> Result<Vec<(Gid, Gid)>, Fault> {
    let range = pair(&element.text, '-', halves).filter(|(first, last)| first <= last);
    let (first, last) = value(element, "MGIDs as high:low-high:low, the lower first", range)?;
    Ok(cover(first, last))
}

/// Parses `high:low*high:low`, a value and a mask.
pub(super) fn mgid_masked(element: &Element) -> Result<(Gid, Gid), Fault> {
    let masked = pair(&element.text, '*', halves);
    let (mgid, mask) = value(element, "an MGID and a mask as high:low*high:low", masked)?;
    Ok((gid(mgid & mask), gid(mask)))
}

fn pair<T>(text: &str, between: char, parse: impl Fn(&str) -> Option<T>) -> Option<(T, T)> {
    let (first, second) = text.split_once(between)?;
    Some((parse(first.trim())?, parse(second.trim())?))
}

fn halves(text: &str) -> Option<u128> {
    let (high, low) = pair(text, ':', parse_number)?;
    Some(u128::from(high) << 64 | u128::from(low))
}

fn gid(value: u128) -> Gid {
    Gid(value.to_be_bytes())
}

/// Values and masks that match exactly the numbers from `first` to `last`.
fn cover(first: u128, last: u128) -> Vec<(Gid, Gid)> {
    let mut all = Vec::new();
    let mut next = first;
    loop {
        // The largest aligned block that starts here and does not extend beyond the end.
        let mut bits = next.trailing_zeros();
        let block_last = |bits: u32| match bits {
            0 => next,
            128.. => u128::MAX,
            _ => next | (u128::MAX >> (128 - bits)),
        };
        while block_last(bits) > last {
            bits -= 1;
        }
        let mask = u128::MAX.checked_shl(bits).unwrap_or(0);
        all.push((gid(next), gid(mask)));
        match block_last(bits).checked_add(1) {
            Some(after) if after <= last => next = after,
            _ => return all,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn accepts(cover: &[(Gid, Gid)], mgid: u128) -> bool {
        let bits = |gid: Gid| u128::from_be_bytes(gid.0);
        cover.iter().any(|&(value, mask)| (mgid ^ bits(value)) & bits(mask) == 0)
    }

    #[test]
    fn all_mgids_are_one_mask() {
        assert_eq!(cover(0, u128::MAX), [(gid(0), gid(0))]);
        assert_eq!(cover(5, 5), [(gid(5), gid(u128::MAX))]);
        assert!(cover(1, u128::MAX - 1).len() <= 254);
    }

    proptest! {
        #[test]
        fn a_cover_accepts_its_range_and_nothing_else(a: u128, b: u128, other: u128) {
            let (first, last) = (a.min(b), a.max(b));
            let cover = cover(first, last);
            let near = [first, last, first.wrapping_sub(1), last.wrapping_add(1), other];
            for mgid in near {
                prop_assert_eq!(accepts(&cover, mgid), (first..=last).contains(&mgid));
            }
        }
    }

    proptest! {
        #[test]
        fn a_lifetime_is_the_least_code_that_is_long_enough(time_ns in 0u64..1 << 50) {
            let length = |code: u8| 4096u64 << code;
            let code = lifetime_code(time_ns);
            prop_assert!(length(code) >= time_ns);
            prop_assert!(code == 0 || length(code - 1) < time_ns);
        }
    }

    #[test]
    fn shares_and_times_have_their_units() {
        let element =
            |text: &str| Element { name: "X".into(), text: text.into(), ..Element::default() };
        let code = |text: &str| hoq_life(&element(text)).ok();
        assert_eq!((code("8ms"), code("8 MS"), code("4096ns")), (Some(11), Some(11), Some(0)));
        assert_eq!((code("0s"), code("2s"), code("1h")), (Some(0), Some(19), Some(30)));
        assert_eq!(code("18446744073709551615h"), Some(52), "no overflow");
        assert_eq!(code("Infinite"), Some(HOQ_LIFE_INFINITE));
        for bad in ["8", "ms", "8min", "-1s", "1.5s", ""] {
            assert_eq!(code(bad), None, "{bad}");
        }
        let share = |text: &str| percent(&element(text)).ok();
        assert_eq!((share("1%"), share("100 %")), (Some(1), Some(100)));
        for bad in ["0%", "101%", "10", "%", "-1%", "1.5%"] {
            assert_eq!(share(bad), None, "{bad}");
        }
    }

    #[test]
    fn rates_that_infiniband_has_not_are_rounded_down() {
        let rate = |text: &str| {
            rate(&Element { name: "MaxRate".into(), text: text.into(), ..Element::default() })
        };
        assert_eq!(rate("25g").unwrap(), Some(Rate::Gbps25));
        assert_eq!(rate("100G").unwrap(), Some(Rate::Gbps100));
        assert_eq!(rate("2.5g").unwrap(), Some(Rate::Gbps2_5));
        assert!(rate("75g").unwrap().unwrap().mbps() <= 75_000);
        assert_eq!(rate("Unlimited").unwrap(), None);
        for bad in ["100", "1g", "g", "-5g", "2.55g", "70000g"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
