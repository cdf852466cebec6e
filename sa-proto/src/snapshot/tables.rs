//! The tables of a snapshot: their numbers, and the list of those of the registry plane.

/// Calls a macro with the tables of the registry plane: `$do! { $before rows }`. There is no other
/// list of them. A row has the field, the row's type, its key and the key's type, the number in
/// checksums and on the wire, and the name for people. The field's name is also the table's name in
/// stores.
#[doc(hidden)]
#[macro_export]
macro_rules! registry_tables {
    ([$($do:tt)*] $before:tt) => {
        $($do)*! { $before
            /// Multicast groups, by MGID.
            groups: MulticastGroup by mgid: Gid, MulticastGroups = 16 "Multicast groups";
            /// Members of multicast groups, by MGID and port GID.
            members: MulticastMember by rid: MulticastMemberRid,
                MulticastMembers = 17 "Members of multicast groups";
            /// Service records, by RID.
            services: Service by rid: ServiceRid, Services = 18 "Service records";
            /// Event subscriptions, by RID.
            subscriptions: Subscription by rid: SubscriptionRid,
                Subscriptions = 19 "Event subscriptions";
            /// Alias GUIDs, by GUID.
            alias_guids: AliasGuid by alias: Guid, AliasGuids = 20 "Alias GUIDs";
        }
    };
}

macro_rules! tables {
    ({ $($(#[$fabric_doc:meta])* $fabric:ident = $fabric_number:literal;)* }
        $($(#[$doc:meta])* $table:ident: $row:ident by $field:ident: $key:ident,
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
        assert_eq!(Table::from_number(12), None);
    }
}
