//! Values of congestion control keys, which are parsed and rendered as OpenSM does.

use super::value::{Value, parse_number};
use sm_routing::text::leading_number;

/// One bit for each of 256 ports, highest port first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortBits([u8; 32]);

impl PortBits {
    /// No port.
    pub const NONE: Self = Self([0; 32]);

    /// The bits, as an attribute has them: port 0 is bit 0 of the last byte.
    pub fn bytes(self) -> [u8; 32] {
        self.0
    }
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

    /// The delay as an attribute has it. What exceeds 2 bits of shift and 14 bits of multiplier is
    /// cut off.
    pub fn code(self) -> u16 {
        ib_mad::wire::congestion::cct_entry(self.shift, self.multiplier)
    }
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

impl Cct {
    /// The delays, as attributes have them.
    pub fn codes(&self) -> impl ExactSizeIterator<Item = u16> {
        self.0.iter().map(|entry| entry.code())
    }
}

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

    /// The number of each SL.
    pub fn numbers(self) -> [u16; 16] {
        self.0.map(Option::unwrap_or_default)
    }
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

/// When a port of a switch marks packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMarking {
    /// How early, 0 to 15; 0 for never.
    pub threshold: u8,
    /// Packets shorter than this are not marked, in credits.
    pub packet_size: u8,
    /// Mean number of packets between marked ones.
    pub marking_rate: u16,
}

impl Value for Option<PortMarking> {
    const EXPECTED: &'static str =
        "threshold:packet size:marking rate, such as 15:0:0, the first up to 15";
    fn parse(text: &str) -> Option<Self> {
        if ["", "(null)"].contains(&text) {
            return Some(None);
        }
        let mut parts = text.split(':').map(|part| parse_number(part.trim()));
        let marking = PortMarking {
            threshold: parts.next()??.try_into().ok().filter(|threshold| *threshold <= 15)?,
            packet_size: parts.next()??.try_into().ok()?,
            marking_rate: parts.next()??.try_into().ok()?,
        };
        parts.next().is_none().then_some(Some(marking))
    }
    fn render(&self) -> String {
        let Some(PortMarking { threshold, packet_size, marking_rate }) = self else {
            return "(null)".to_owned();
        };
        format!("{threshold}:{packet_size}:{marking_rate}")
    }
    fn number(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marking_of_a_port_is_three_numbers() {
        let marking = <Option<PortMarking>>::parse("15:8:0x100").unwrap();
        assert_eq!(marking.render(), "15:8:256");
        assert_eq!(<Option<PortMarking>>::parse("(null)"), Some(None));
        for wrong in ["16:0:0", "1:256:0", "1:0", "1:0:0:0", "a:0:0"] {
            assert_eq!(<Option<PortMarking>>::parse(wrong), None, "{wrong}");
        }
    }

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
        assert_eq!(table.unwrap().codes().collect::<Vec<_>>(), [0, 0x4010]);
        assert_eq!(CctEntry { shift: 7, multiplier: 0x4001 }.code(), 0xC001);
        assert_eq!(<Option<Cct>>::parse("1,2"), None);
        assert_eq!(CctEntry::salvage("2:3x"), Some(CctEntry { shift: 2, multiplier: 3 }));
        assert_eq!((CctEntry::parse("2:3x"), CctEntry::salvage("2")), (None, None));
        assert_eq!(<Option<Cct>>::salvage("0:1,2:3 x,").unwrap().render(), "0:1,2:3");
    }
}
