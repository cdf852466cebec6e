//! Foundation of [`layout!`](crate::layout): the [`Field`] trait, implemented by the types that a
//! field of a layout can have, and reading and writing of bits.

use crate::types::{Gid, Guid, Lid, Lifetime, Mtu, PKey, PortNum, Qpn, Rate, Sl, Vl};

/// Why bytes cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The buffer is shorter than the layout.
    #[error("{attribute} needs {needed} bytes, got {got}")]
    Truncated {
        /// Attribute or record being decoded.
        attribute: &'static str,
        /// Required length in bytes.
        needed: usize,
        /// Actual length in bytes.
        got: usize,
    },
    /// A field holds a reserved code.
    #[error("{attribute}.{field} holds the reserved code {value}")]
    Reserved {
        /// Attribute or record being decoded.
        attribute: &'static str,
        /// The field.
        field: &'static str,
        /// Its raw value.
        value: u64,
    },
}

/// Description of one field of a layout.
#[derive(Clone, Copy)]
pub struct FieldInfo {
    /// Name of the field, as in the specification but in Rust case.
    pub name: &'static str,
    /// First bit, counted from the start of the layout, most significant bit first.
    pub bit: usize,
    /// Width in bits.
    pub width: usize,
    /// Appends the value as text, read from the whole layout's bytes.
    pub format: fn(&[u8], &mut String),
}

/// Description of a layout.
#[derive(Clone, Copy)]
pub struct Layout {
    /// Name in the specification.
    pub name: &'static str,
    /// Length in bytes.
    pub len: usize,
    /// The fields, in order.
    pub fields: &'static [FieldInfo],
}

/// A type that a field of a layout can have.
pub trait Field: Sized {
    /// Type that a view returns: the value itself, or the raw code of a checked type.
    type View: Copy + std::fmt::Debug;
    /// Reads bits `BIT..BIT + WIDTH`.
    fn read<const BIT: usize, const WIDTH: usize>(bytes: &[u8]) -> Self::View;
    /// Writes bits `BIT..BIT + WIDTH`, and no other bits.
    fn write<const BIT: usize, const WIDTH: usize>(self, bytes: &mut [u8]);
    /// The checked value, or the raw code as error if it is reserved.
    fn check(view: Self::View) -> Result<Self, u64>;
    /// Appends `view` as text.
    fn format(view: Self::View, text: &mut String);
}

/// Reads `WIDTH` ≤ 64 bits from bit `BIT`, big-endian. Constant parameters make this plain loads:
/// compilers merge a loop over bytes into one load only for the widths listed here.
#[inline(always)]
pub fn get_bits<const BIT: usize, const WIDTH: usize>(bytes: &[u8]) -> u64 {
    let first = BIT / 8;
    let last = (BIT + WIDTH - 1) / 8;
    let bytes = &bytes[first..=last];
    match (BIT % 8, WIDTH) {
        (0, 64) => return u64::from_be_bytes(word(bytes)),
        (0, 32) => return u32::from_be_bytes(word(bytes)).into(),
        (0, 16) => return u16::from_be_bytes(word(bytes)).into(),
        _ => {}
    }
    let mut value: u128 = 0;
    for &byte in bytes {
        value = value << 8 | u128::from(byte);
    }
    let below = (last + 1) * 8 - (BIT + WIDTH);
    let mask = if WIDTH == 64 { u64::MAX } else { (1 << WIDTH) - 1 };
    (value >> below) as u64 & mask
}

/// Writes the low `WIDTH` ≤ 64 bits of `value` to bit `BIT`, big-endian.
#[inline(always)]
pub fn set_bits<const BIT: usize, const WIDTH: usize>(bytes: &mut [u8], value: u64) {
    let first = BIT / 8;
    let last = (BIT + WIDTH - 1) / 8;
    match (BIT % 8, WIDTH) {
        (0, 64) => return put(&mut bytes[first..=last], value.to_be_bytes()),
        (0, 32) => return put(&mut bytes[first..=last], (value as u32).to_be_bytes()),
        (0, 16) => return put(&mut bytes[first..=last], (value as u16).to_be_bytes()),
        _ => {}
    }
    let below = (last + 1) * 8 - (BIT + WIDTH);
    let mask = (if WIDTH == 64 { u64::MAX as u128 } else { (1 << WIDTH) - 1 }) << below;
    let value = u128::from(value) << below & mask;
    for (i, byte) in bytes[first..=last].iter_mut().enumerate() {
        let shift = (last - first - i) * 8;
        *byte = *byte & !((mask >> shift) as u8) | (value >> shift) as u8;
    }
}

/// The `LEN` bytes of an array from byte `AT` on, as an array. Out of range does not compile.
///
/// ```
/// use ib_mad::wire::field::part;
///
/// let mad = [7; 256];
/// let attribute: &[u8; 64] = part::<64, _, _>(&mad);
/// ```
#[inline(always)]
pub const fn part<const AT: usize, const LEN: usize, const N: usize>(
    bytes: &[u8; N],
) -> &[u8; LEN] {
    const { assert!(AT <= N && LEN <= N - AT, "the part ends beyond the array") };
    let (_, tail) = bytes.split_at(AT);
    tail.first_chunk().expect("bounds are checked at compile time")
}

/// The mutable version of [`part`].
#[inline(always)]
pub const fn part_mut<const AT: usize, const LEN: usize, const N: usize>(
    bytes: &mut [u8; N],
) -> &mut [u8; LEN] {
    const { assert!(AT <= N && LEN <= N - AT, "the part ends beyond the array") };
    let (_, tail) = bytes.split_at_mut(AT);
    tail.first_chunk_mut().expect("bounds are checked at compile time")
}

/// Bytes converted to an array of `N`.
#[inline(always)]
fn word<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the slice has N bytes")
}

/// Copies to a slice of `N` bytes; unlike `copy_from_slice` never a function call.
#[inline(always)]
fn put<const N: usize>(bytes: &mut [u8], value: [u8; N]) {
    *bytes.first_chunk_mut().expect("the slice has N bytes") = value;
}

macro_rules! plain_field {
    ($($type:ty, |$raw:ident| $make:expr, |$value:ident| $take:expr, $format:literal;)*) => {$(
        impl Field for $type {
            type View = Self;
            #[inline(always)]
            fn read<const BIT: usize, const WIDTH: usize>(bytes: &[u8]) -> Self {
                let $raw = get_bits::<BIT, WIDTH>(bytes);
                $make
            }
            #[inline(always)]
            fn write<const BIT: usize, const WIDTH: usize>(self, bytes: &mut [u8]) {
                let $value = self;
                set_bits::<BIT, WIDTH>(bytes, $take);
            }
            #[inline(always)]
            fn check(view: Self) -> Result<Self, u64> {
                Ok(view)
            }
            fn format(view: Self, text: &mut String) {
                text.push_str(&format!($format, view));
            }
        }
    )*};
}

plain_field! {
    bool, |raw| raw != 0, |value| u64::from(value), "{}";
    u8, |raw| raw as u8, |value| u64::from(value), "{}";
    u16, |raw| raw as u16, |value| u64::from(value), "{:#x}";
    u32, |raw| raw as u32, |value| u64::from(value), "{:#x}";
    u64, |raw| raw, |value| value, "{:#x}";
    Lid, |raw| Lid(raw as u16), |value| u64::from(value.0), "{}";
    Guid, |raw| Guid(raw), |value| value.0, "{}";
    PKey, |raw| PKey(raw as u16), |value| u64::from(value.0), "{}";
    PortNum, |raw| PortNum(raw as u8), |value| u64::from(value.0), "{}";
    Qpn, |raw| Qpn(raw as u32), |value| u64::from(value.0), "{}";
    Sl, |raw| Sl::from_low_bits(raw as u16), |value| u64::from(value.get()), "{}";
    Vl, |raw| Vl::from_low_bits(raw as u16), |value| u64::from(value.get()), "{}";
    Lifetime, |raw| Lifetime::from_low_bits(raw as u8), |value| u64::from(value.code()), "{}";
}

/// Implements [`Field`] for a field-less enum with explicit codes; views return the code.
macro_rules! code_field {
    ($($type:ty),* $(,)?) => {$(
        impl $crate::wire::field::Field for $type {
            type View = u8;
            #[inline(always)]
            fn read<const BIT: usize, const WIDTH: usize>(bytes: &[u8]) -> u8 {
                $crate::wire::field::get_bits::<BIT, WIDTH>(bytes) as u8
            }
            #[inline(always)]
            fn write<const BIT: usize, const WIDTH: usize>(self, bytes: &mut [u8]) {
                $crate::wire::field::set_bits::<BIT, WIDTH>(bytes, u64::from(self.code()));
            }
            #[inline]
            fn check(code: u8) -> Result<Self, u64> {
                <$type>::from_code(code).ok_or(u64::from(code))
            }
            fn format(code: u8, text: &mut String) {
                match <$type>::from_code(code) {
                    Some(value) => text.push_str(&format!("{value}")),
                    None => text.push_str(&format!("reserved code {code}")),
                }
            }
        }
    )*};
}
pub(crate) use code_field;

code_field!(Mtu, Rate);

impl<const N: usize> Field for [u8; N] {
    type View = Self;
    #[inline(always)]
    fn read<const BIT: usize, const WIDTH: usize>(bytes: &[u8]) -> Self {
        const { assert!(BIT.is_multiple_of(8) && WIDTH == N * 8) };
        word(&bytes[BIT / 8..BIT / 8 + N])
    }
    #[inline(always)]
    fn write<const BIT: usize, const WIDTH: usize>(self, bytes: &mut [u8]) {
        const { assert!(BIT.is_multiple_of(8) && WIDTH == N * 8) };
        put(&mut bytes[BIT / 8..BIT / 8 + N], self);
    }
    #[inline(always)]
    fn check(view: Self) -> Result<Self, u64> {
        Ok(view)
    }
    fn format(view: Self, text: &mut String) {
        for byte in view {
            text.push_str(&format!("{byte:02x}"));
        }
    }
}

impl Field for Gid {
    type View = Self;
    #[inline(always)]
    fn read<const BIT: usize, const WIDTH: usize>(bytes: &[u8]) -> Self {
        Self(<[u8; 16]>::read::<BIT, WIDTH>(bytes))
    }
    #[inline(always)]
    fn write<const BIT: usize, const WIDTH: usize>(self, bytes: &mut [u8]) {
        self.0.write::<BIT, WIDTH>(bytes);
    }
    #[inline(always)]
    fn check(view: Self) -> Result<Self, u64> {
        Ok(view)
    }
    fn format(view: Self, text: &mut String) {
        text.push_str(&view.to_string());
    }
}

/// Declares the layout of an attribute, a record or a header.
///
/// Ranges count bits from the start, most significant first, as in the specification's drawings.
/// The length is stated separately, since layouts may end with reserved bytes. Field types
/// implement [`Field`](crate::wire::field::Field): integers, `bool`, byte arrays and the types of
/// [`types`](crate::types), or types of your own.
///
/// The macro declares
///
/// - a view `Name<T>` with `NAME`, `LEN`, `FIELDS` and `LAYOUT` (the layout as data, which the
///   dissector prints from), a getter for each field (a checked type such as
///   [`Mtu`](crate::types::Mtu) reads as its raw code) and, on writable buffers, a `set_…` method
///   for each field;
/// - its constructors: `of` and `of_mut` wrap an array and cannot fail, `at` and `at_mut` wrap a
///   part of an array, `new` wraps anything else after checking its length;
/// - `NameRepr`, which is owned and valid, with `parse`, `emit` and `to_bytes`. `emit` writes the
///   fields and leaves reserved bits as they are.
///
/// # Examples
///
/// A vendor's attribute:
///
/// ```
/// use ib_mad::types::PortNum;
/// use ib_mad::wire::mad::{AttributeId, Method};
/// use ib_mad::wire::smp::{self, Request, Smp};
///
/// ib_mad::layout! {
///     /// CableTemperature, 8 bytes, attribute 0xFF31 of switches of this vendor.
///     ///
///     /// ```text
///     /// 0 Port   1 rsvd:7 Valid:1   2 rsvd:6 Degrees:10   4 reserved (4)
///     /// ```
///     pub struct CableTemperature(CableTemperatureRepr): "CableTemperature", 8 bytes {
///         /// The port whose cable was measured.
///         port: PortNum [0 .. 8],
///         /// Whether the cable has a sensor.
///         valid: bool [15 .. 16],
///         /// Degrees Celsius.
///         degrees: u16 [22 .. 32],
///     }
/// }
///
/// let mut mad = [0; 256];
/// Request {
///     method: Method::GET,
///     attribute_id: AttributeId(0xFF31),
///     attribute_modifier: 3,
///     tid: 1,
///     m_key: 0,
/// }
/// .write_lid_routed(&mut mad);
///
/// // What the switch fills in.
/// CableTemperature::at_mut::<{ smp::DATA.start }, _>(&mut mad)
///     .set_port(PortNum(3))
///     .set_valid(true)
///     .set_degrees(61);
///
/// let answer = Smp::of(&mad);
/// let temperature = CableTemperature::of(answer.data_bytes());
/// assert_eq!((temperature.valid(), temperature.degrees()), (true, 61));
/// let repr = CableTemperatureRepr::parse(&temperature).unwrap();
/// assert_eq!(repr.to_bytes(), [3, 1, 0, 61, 0, 0, 0, 0]);
/// ```
///
/// An array that is too short does not compile:
///
/// ```compile_fail,E0080
/// let bytes = [0; 63];
/// ib_mad::wire::attribute::PortInfo::of(&bytes);
/// ```
#[macro_export]
macro_rules! layout {
    (
        $(#[$doc:meta])*
        $vis:vis struct $view:ident($repr:ident): $name:literal, $len:literal bytes {
            $(
                $(#[$field_doc:meta])*
                $field:ident: $type:ty [$from:literal .. $to:literal]
            ),* $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        $vis struct $view<T> {
            buffer: T,
        }

        #[allow(dead_code, reason = "a layout has all fields, whether used or not")]
        impl $view<()> {
            /// Name in the specification.
            pub const NAME: &'static str = $name;
            /// Length, bytes.
            pub const LEN: usize = $len;
            /// The layout as data, in the order of the specification.
            pub const FIELDS: &'static [$crate::wire::field::FieldInfo] = &[$(
                $crate::wire::field::FieldInfo {
                    name: ::core::stringify!($field),
                    bit: $from,
                    width: $to - $from,
                    format: |bytes, text| {
                        let view = <$type as $crate::wire::field::Field>::read::<
                            { $from }, { $to - $from }>(bytes);
                        <$type as $crate::wire::field::Field>::format(view, text);
                    },
                },
            )*];
            /// Name, length and fields in one.
            pub const LAYOUT: $crate::wire::field::Layout = $crate::wire::field::Layout {
                name: $name,
                len: $len,
                fields: Self::FIELDS,
            };
        }

        impl<T: ::core::convert::AsRef<[u8]>> $view<T> {
            /// Wraps `buffer` after checking its length, which is all that accessors require.
            #[inline]
            pub fn new(
                buffer: T,
            ) -> ::core::result::Result<Self, $crate::wire::field::DecodeError> {
                let got = buffer.as_ref().len();
                if got < $len {
                    return ::core::result::Result::Err($crate::wire::field::DecodeError::Truncated {
                        attribute: $name,
                        needed: $len,
                        got,
                    });
                }
                ::core::result::Result::Ok(Self { buffer })
            }

            /// The buffer that the view wraps.
            #[inline]
            pub fn into_inner(self) -> T {
                self.buffer
            }

            /// The layout's bytes.
            #[inline]
            pub fn as_bytes(&self) -> &[u8] {
                &self.buffer.as_ref()[..$len]
            }

            $(
                $(#[$field_doc])*
                #[inline(always)]
                pub fn $field(&self) -> <$type as $crate::wire::field::Field>::View {
                    <$type as $crate::wire::field::Field>::read::<{ $from }, { $to - $from }>(
                        self.buffer.as_ref(),
                    )
                }
            )*
        }

        #[allow(dead_code, reason = "a layout has all fields, whether used or not")]
        impl<'a, const N: usize> $view<&'a [u8; N]> {
            #[doc = ::core::concat!("Wraps an array of at least ", $len, " bytes; a shorter one \
                does not compile.")]
            #[inline(always)]
            pub const fn of(buffer: &'a [u8; N]) -> Self {
                const { ::core::assert!(N >= $len, ::core::concat!("too short for ", $name)) };
                Self { buffer }
            }
        }

        #[allow(dead_code, reason = "a layout has all fields, whether used or not")]
        impl<'a, const N: usize> $view<&'a mut [u8; N]> {
            #[doc = ::core::concat!("The mutable version of `of`.")]
            #[inline(always)]
            pub const fn of_mut(buffer: &'a mut [u8; N]) -> Self {
                const { ::core::assert!(N >= $len, ::core::concat!("too short for ", $name)) };
                Self { buffer }
            }
        }

        #[allow(dead_code, reason = "a layout has all fields, whether used or not")]
        impl<'a> $view<&'a [u8; $len]> {
            #[doc = ::core::concat!("Wraps the ", $len, " bytes from byte `AT` of a longer array \
                on; what")]
            /// does not fit does not compile.
            #[inline(always)]
            pub const fn at<const AT: usize, const N: usize>(bytes: &'a [u8; N]) -> Self {
                Self { buffer: $crate::wire::field::part::<AT, $len, N>(bytes) }
            }
        }

        #[allow(dead_code, reason = "a layout has all fields, whether used or not")]
        impl<'a> $view<&'a mut [u8; $len]> {
            /// The mutable version of `at`.
            #[inline(always)]
            pub const fn at_mut<const AT: usize, const N: usize>(
                bytes: &'a mut [u8; N],
            ) -> Self {
                Self { buffer: $crate::wire::field::part_mut::<AT, $len, N>(bytes) }
            }
        }

        $crate::__private::paste! {
            impl<T: ::core::convert::AsMut<[u8]>> $view<T> {
                $(
                    #[doc = ::core::concat!("Writes `", ::core::stringify!($field), "`.")]
                    #[inline(always)]
                    pub fn [<set_ $field>](&mut self, value: $type) -> &mut Self {
                        <$type as $crate::wire::field::Field>::write::<{ $from }, { $to - $from }>(
                            value,
                            self.buffer.as_mut(),
                        );
                        self
                    }
                )*
            }
        }

        #[doc = ::core::concat!("Owned, valid [`", ::core::stringify!($view), "`].")]
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis struct $repr {
            $( $(#[$field_doc])* pub $field: $type, )*
        }

        impl $repr {
            /// Decodes a view, rejecting reserved codes.
            pub fn parse<T: ::core::convert::AsRef<[u8]>>(
                view: &$view<T>,
            ) -> ::core::result::Result<Self, $crate::wire::field::DecodeError> {
                ::core::result::Result::Ok(Self {
                    $( $field: <$type as $crate::wire::field::Field>::check(view.$field())
                        .map_err(|value| $crate::wire::field::DecodeError::Reserved {
                            attribute: $name,
                            field: ::core::stringify!($field),
                            value,
                        })?, )*
                })
            }

            /// Writes all fields, and no reserved bits.
            pub fn emit<T>(&self, view: &mut $view<T>)
            where
                T: ::core::convert::AsRef<[u8]> + ::core::convert::AsMut<[u8]>,
            {
                let bytes = view.buffer.as_mut();
                $( <$type as $crate::wire::field::Field>::write::<{ $from }, { $to - $from }>(
                    ::core::clone::Clone::clone(&self.$field),
                    bytes,
                ); )*
            }

            /// The layout's bytes, with reserved bits zero.
            pub fn to_bytes(&self) -> [u8; $len] {
                let mut bytes = [0; $len];
                self.emit(&mut $view { buffer: &mut bytes[..] });
                bytes
            }
        }
    };
}
pub(crate) use layout;

#[cfg(test)]
#[allow(unreachable_pub, reason = "a layout is public where it is declared")]
#[allow(dead_code, reason = "a layout has more accessors than these tests use")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    layout! {
        /// A layout with all kinds of adjacent fields.
        pub struct Probe(ProbeRepr): "Probe", 24 bytes {
            /// Shares a byte.
            high: u8 [0 .. 3],
            /// A checked type.
            mtu: Mtu [3 .. 8],
            /// Crosses a byte boundary.
            odd: u32 [12 .. 32],
            /// Starts and ends inside a byte, and touches nine bytes.
            long: u64 [36 .. 100],
            /// A whole word.
            lid: Lid [112 .. 128],
            /// An array.
            tail: [u8; 8] [128 .. 192],
        }
    }

    /// Whole words are accessed at once, other fields byte by byte.
    #[test]
    fn whole_words_are_bits_like_any_others() {
        let bytes: [u8; 16] = std::array::from_fn(|i| 0x10 * i as u8 + 1);
        let parts = get_bits::<8, 31>(&bytes) << 33 | get_bits::<39, 33>(&bytes);
        assert_eq!(get_bits::<8, 64>(&bytes), parts);
        assert_eq!(get_bits::<8, 32>(&bytes), parts >> 32);
        assert_eq!(get_bits::<8, 16>(&bytes), parts >> 48);
        let (mut whole, mut piecewise) = ([0xA5; 16], [0xA5; 16]);
        set_bits::<8, 64>(&mut whole, parts);
        set_bits::<8, 31>(&mut piecewise, parts >> 33);
        set_bits::<39, 33>(&mut piecewise, parts & 0x1_FFFF_FFFF);
        assert_eq!(whole, piecewise);
        set_bits::<72, 32>(&mut whole, 0xF_1234_5678);
        set_bits::<104, 16>(&mut whole, 0xF_9ABC);
        assert_eq!(whole[9..], [0x12, 0x34, 0x56, 0x78, 0x9A, 0xBC, 0xA5], "high bits are cut off");
    }

    /// Emission must not depend on the previous content of the buffer, nor change other bits.
    #[test]
    fn emit_touches_only_its_own_fields() {
        let repr = ProbeRepr {
            high: 5,
            mtu: Mtu::B2048,
            odd: 0xABCDE,
            long: 0x0123_4567_89AB_CDEF,
            lid: Lid(0x1234),
            tail: *b"fat tree",
        };
        let (mut ones, mut zeros) = ([0xFF; 24], [0; 24]);
        repr.emit(&mut Probe::new(&mut ones[..]).unwrap());
        repr.emit(&mut Probe::new(&mut zeros[..]).unwrap());
        let mut owned = [0u8; 24];
        for field in Probe::<()>::FIELDS {
            for bit in field.bit..field.bit + field.width {
                owned[bit / 8] |= 0x80 >> (bit % 8);
            }
        }
        for i in 0..24 {
            assert_eq!(ones[i] & owned[i], zeros[i] & owned[i], "byte {i}");
            assert_eq!((ones[i] | owned[i], zeros[i] & !owned[i]), (0xFF, 0), "byte {i}");
        }
        assert_eq!(ProbeRepr::parse(&Probe::new(&ones[..]).unwrap()), Ok(repr));
        assert_eq!(zeros[0], 5 << 5 | 4);
        assert_eq!(zeros[1..4], [0x0A, 0xBC, 0xDE]);
    }

    #[test]
    fn reserved_codes_and_short_buffers_are_named() {
        let view = Probe::new([0; 24]).unwrap();
        assert_eq!(
            ProbeRepr::parse(&view).unwrap_err().to_string(),
            "Probe.mtu holds the reserved code 0"
        );
        assert_eq!(Probe::new([0; 23]).err().unwrap().to_string(), "Probe needs 24 bytes, got 23");
    }

    #[test]
    fn views_of_arrays_cannot_fail() {
        let mut bytes = [0; 40];
        Probe::of_mut(&mut bytes).set_lid(Lid(7));
        Probe::at_mut::<16, _>(&mut bytes).set_lid(Lid(9));
        assert_eq!(Probe::of(&bytes).lid(), Lid(7));
        assert_eq!(Probe::at::<16, _>(&bytes).lid(), Lid(9));
        assert_eq!(Probe::of(&bytes).into_inner().len(), 40, "all of the array stays in reach");
        assert_eq!(part::<30, 2, _>(&bytes), &[0, 9]);
    }

    proptest! {
        #[test]
        fn bits_round_trip_between_their_neighbours(value: u64, fill: u8) {
            let mut bytes = [fill; 16];
            set_bits::<13, 51>(&mut bytes, value);
            prop_assert_eq!(get_bits::<13, 51>(&bytes), value & ((1 << 51) - 1));
            prop_assert_eq!(get_bits::<0, 13>(&bytes), ((u64::from(fill) * 0x0101) >> 3) & 0x1FFF);
            prop_assert_eq!(&bytes[8..], &[fill; 8]);
        }
    }
}
