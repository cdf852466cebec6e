//! Values of congestion control keys, which are parsed and rendered as OpenSM does and have no
//! effect.

use super::value::{Value, parse_number};
use sm_routing::text::leading_number;

/// One bit for each of 256 ports, highest port first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortBits([u8; 32]);

impl PortBits {
    /// No port.
    pub const NONE: Self = Self([0; 32]);
}

impl Value for PortBits {
    const EXPECTED: &'static str = "up to 64 hexadecimal digits, such as 0x2";
    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        // OpenSM uses the first 64 digits.
        let digits = format!("{:0>64}", &digits[..digits.len().min(64)]);
        let mut bits = Self::NONE;
        for (byte, at) in bits.0.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
        }
        Some(bits)
    }
    fn render(&self) -> String {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02X}")).collect();
        format!("0x{digits}")
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

/// A delay, as a shift and a multiplier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CctEntry {
    shift: u8,
    multiplier: u16,
}

impl CctEntry {
    /// No delay.
    pub const NONE: Self = Self { shift: 0, multiplier: 0 };
}

impl Value for CctEntry {
    const EXPECTED: &'static str = "shift:multiplier, such as 1:20";
    fn parse(text: &str) -> Option<Self> {
        let (shift, multiplier) = text.split_once(':')?;
        Some(Self {
            shift: parse_number(shift.trim())?.try_into().ok()?,
            multiplier: parse_number(multiplier.trim())?.try_into().ok()?,
        })
    }
    /// Parses the numbers at the start of both sides of the colon, truncated to the fields' width.
    fn salvage(text: &str) -> Option<Self> {
        let (shift, multiplier) = text.split_once(':')?;
        let number = |text| leading_number(text).0.unwrap_or(u64::MAX);
        Some(Self { shift: number(shift) as u8, multiplier: number(multiplier) as u16 })
    }
    fn render(&self) -> String {
        format!("{}:{}", self.shift, self.multiplier)
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

/// Delays by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cct(Vec<CctEntry>);

/// Largest number of entries in a table of delays.
const CCT_MAX: usize = 128;

impl Value for Option<Cct> {
    const EXPECTED: &'static str =
        "up to 128 pairs shift:multiplier, separated by commas, such as 0:0,1:20";
    fn parse(text: &str) -> Option<Self> {
        if ["", "(null)"].contains(&text) {
            return Some(None);
        }
        let entries: Option<Vec<_>> = text.split(',').map(CctEntry::parse).collect();
        entries.filter(|entries| entries.len() <= CCT_MAX).map(|entries| Some(Cct(entries)))
    }
    fn salvage(text: &str) -> Option<Self> {
        let entries = text.split(',').filter(|entry| !entry.is_empty()).take(CCT_MAX);
        let entries: Option<Vec<_>> = entries.map(CctEntry::salvage).collect();
        entries.map(|entries| (!entries.is_empty()).then_some(Cct(entries)))
    }
    fn render(&self) -> String {
        let Some(Cct(entries)) = self else { return "(null)".to_owned() };
        entries.iter().map(CctEntry::render).collect::<Vec<_>>().join(",")
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

/// A number up to `MAX` for each SL; the key may occur once per SL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BySl<const MAX: u16>([Option<u16>; 16]);

impl<const MAX: u16> BySl<MAX> {
    /// No SL has a value.
    pub const NONE: Self = Self([None; 16]);
}

impl<const MAX: u16> Value for BySl<MAX> {
    const EXPECTED: &'static str = "an SL (0 to 15) and a number, such as 3 20";
    fn parse(text: &str) -> Option<Self> {
        let (sl, number) = text.split_once(char::is_whitespace)?;
        let sl = usize::try_from(parse_number(sl)?).ok()?;
        let number = parse_number(number.trim())?.try_into().ok().filter(|n| *n <= MAX)?;
        let mut all = Self::NONE;
        // A value of 0 is the same as none.
        *all.0.get_mut(sl)? = (number > 0).then_some(number);
        Some(all)
    }
    fn render(&self) -> String {
        self.render_lines().join(", ")
    }
    fn number(&self) -> Option<u64> {
        None
    }
    fn take(&mut self, by: Self) {
        self.0.iter_mut().zip(by.0).for_each(|(old, new)| *old = new.or(*old));
    }
    fn render_lines(&self) -> Vec<String> {
        let lines = (0..).zip(self.0).filter_map(|(sl, n): (u8, _)| Some(format!("{sl} {}", n?)));
        let lines: Vec<String> = lines.collect();
        if lines.is_empty() { vec!["0 0".to_owned()] } else { lines }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_read_from_the_right() {
        let bits = PortBits::parse("0x102").unwrap();
        assert_eq!((bits.0[31], bits.0[30], bits.0[29]), (2, 1, 0));
        assert_eq!(PortBits::parse(&bits.render()), Some(bits));
        assert_eq!((PortBits::parse("0x"), PortBits::parse("1g")), (None, None));
    }

    #[test]
    fn lines_of_several_sls_add_up() {
        type Bytes = BySl<255>;
        let mut all = Bytes::parse("3 0x14").unwrap();
        all.take(Bytes::parse("1\t2").unwrap());
        assert_eq!(all.render_lines(), ["1 2", "3 20"]);
        assert_eq!((Bytes::parse("16 1"), Bytes::parse("3")), (None, None));
        assert_eq!(Bytes::parse("3 256"), None);
        assert_eq!(Bytes::NONE.render_lines(), ["0 0"]);
    }

    #[test]
    fn delays_are_pairs() {
        let table = <Option<Cct>>::parse("0:0,1:0x10").unwrap();
        assert_eq!(table.render(), "0:0,1:16");
        assert_eq!(<Option<Cct>>::parse("1,2"), None);
        assert_eq!(CctEntry::salvage("2:3x"), Some(CctEntry { shift: 2, multiplier: 3 }));
        assert_eq!((CctEntry::parse("2:3x"), CctEntry::salvage("2")), (None, None));
        assert_eq!(<Option<Cct>>::salvage("0:1,2:3 x,").unwrap().render(), "0:1,2:3");
    }
}
