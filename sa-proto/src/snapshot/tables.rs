//! The tables of a snapshot, and their numbers.

macro_rules! tables {
    ({ $($(#[$fabric_doc:meta])* $fabric:ident = $fabric_number:literal;)* }
        $($(#[$doc:meta])* $table:ident: $row:ident by $field:ident: $key:ident,
        named $($subject:ident).+: $subject_type:ident,
        $variant:ident = $number:literal $name:literal;)*) => {
        /// Tables of a snapshot. The numbers are used in checksums and on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Table {
            $($(#[$fabric_doc])* $fabric = $fabric_number,)*
            $($(#[$doc])* $variant = $number,)*
        }

        impl Table {
            /// All tables, in the order of transfer.
            pub const ALL: &'static [Self] = &[$(Self::$fabric,)* $(Self::$variant,)*];

            /// The name of a table of the registry plane, in stores; `None` for other tables.
            pub fn registry_name(self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some(stringify!($table)),)*
                    _ => None,
                }
            }
        }
    };
}
crate::registry_tables!([tables] {
    /// Nodes with their ports, by node GUID.
    Nodes = 1;
    /// Linear forwarding tables, by node GUID.
    Lfts = 2;
    /// SL-to-VL and VL arbitration tables, by node GUID.
    PortTables = 3;
    /// Multicast forwarding tables, by node GUID.
    Mfts = 4;
    /// Subnet managers, by port GUID.
    SubnetManagers = 5;
    /// Partitions, by base P_Key.
    Partitions = 6;
    /// Port groups of QoS rules, by number.
    PortGroups = 7;
    /// QoS levels, by number.
    QosLevels = 8;
    /// QoS rules, by precedence.
    QosRules = 9;
    /// Virtual fabrics, by position.
    VirtualFabrics = 10;
    /// SLs of paths, by node GUID of the source's switch.
    PathSls = 11;
    /// Virtual ports, by the GUID of the port that has them.
    VirtualPorts = 12;
});

impl Table {
    /// The table with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|&table| table as u8 == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_numbers_read_back() {
        for &table in Table::ALL {
            assert_eq!(Table::from_number(table as u8), Some(table));
        }
        assert_eq!(Table::from_number(13), None);
    }
}
