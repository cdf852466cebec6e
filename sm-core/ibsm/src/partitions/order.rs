//! Reads an order of a program from its message.

use ib_mad::types::{Guid, Mtu, PKey, Rate, Sl};
use sa_proto::proto::partition as proto;
use sm_core::registry::{Attributes, PartitionAction, PartitionOrder, Presence, WantedMember};

/// Why a message is no order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// A number is out of its range.
    #[error("{what} is {value}, which is none")]
    Range {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u32,
    },
    /// It orders nothing.
    #[error("the order has no action")]
    Nothing,
}

/// The order in a message.
pub fn read(order: proto::Order) -> Result<PartitionOrder, OrderError> {
    use proto::order::Action;
    let pkey = pkey(order.pkey)?;
    let action = match order.action.ok_or(OrderError::Nothing)? {
        Action::Set(set) => PartitionAction::Set {
            presence: presence(set.presence)?,
            attributes: attributes(set.attributes)?,
        },
        Action::Add(proto::Members { members, attributes: with }) => PartitionAction::Add {
            members: members.iter().map(member).collect(),
            attributes: attributes(with)?,
        },
        Action::Replace(proto::Members { members, attributes: with }) => PartitionAction::Replace {
            members: members.iter().map(member).collect(),
            attributes: attributes(with)?,
        },
        Action::Remove(removal) => PartitionAction::Remove {
            guids: removal.guids.into_iter().map(Guid).collect(),
            hosts: Vec::new(),
            deletes_empty: removal.deletes_empty,
        },
        Action::Delete(_) => PartitionAction::Delete,
    };
    Ok(PartitionOrder { pkey, action })
}

/// A P_Key.
pub fn pkey(number: u32) -> Result<PKey, OrderError> {
    u16::try_from(number).map(PKey).map_err(|_| OrderError::Range { what: "P_Key", value: number })
}

fn presence(number: i32) -> Result<Presence, OrderError> {
    match proto::Presence::try_from(number) {
        Ok(proto::Presence::Either) => Ok(Presence::Either),
        Ok(proto::Presence::Present) => Ok(Presence::Present),
        Ok(proto::Presence::Absent) => Ok(Presence::Absent),
        Err(_) => Err(OrderError::Range { what: "presence", value: number.cast_unsigned() }),
    }
}

fn attributes(message: Option<proto::Attributes>) -> Result<Attributes, OrderError> {
    let proto::Attributes { name, ipoib, mtu, rate, sl } = message.unwrap_or_default();
    let code = |what, value: Option<u32>| {
        let code =
            value.map(|value| u8::try_from(value).map_err(|_| OrderError::Range { what, value }));
        code.transpose()
    };
    let known = |what, value: Option<u32>, is_known: bool| match value {
        Some(value) if !is_known => Err(OrderError::Range { what, value }),
        _ => Ok(()),
    };
    let mtu_read = code("MTU", mtu)?.and_then(Mtu::from_code);
    known("MTU", mtu, mtu_read.is_some())?;
    let rate_read = code("rate", rate)?.and_then(Rate::from_code);
    known("rate", rate, rate_read.is_some())?;
    let sl_read = sl.filter(|sl| *sl < 16).map(|sl| Sl::from_low_bits(sl as u16));
    known("SL", sl, sl_read.is_some())?;
    Ok(Attributes { name, ipoib, mtu: mtu_read, rate: rate_read, sl: sl_read })
}

fn member(message: &proto::Member) -> WantedMember {
    let proto::Member { guid, full, limited, first } = *message;
    WantedMember { guid: Guid(guid), full, limited, first, host: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(attributes: proto::Attributes) -> proto::Order {
        let set = proto::Set { presence: 2, attributes: Some(attributes) };
        proto::Order { pkey: 5, action: Some(proto::order::Action::Set(set)) }
    }

    #[test]
    fn an_order_is_read_with_its_attributes() {
        let with = proto::Attributes { mtu: Some(5), sl: Some(3), ..Default::default() };
        let attributes = Attributes {
            mtu: Some(Mtu::B4096),
            sl: Some(Sl::from_low_bits(3)),
            ..Default::default()
        };
        let action = PartitionAction::Set { presence: Presence::Absent, attributes };
        assert_eq!(read(set(with)), Ok(PartitionOrder { pkey: PKey(5), action }));
    }

    #[test]
    fn numbers_out_of_range_are_no_order() {
        let bad = [
            set(proto::Attributes { mtu: Some(6), ..Default::default() }),
            set(proto::Attributes { mtu: Some(261), ..Default::default() }),
            set(proto::Attributes { rate: Some(1), ..Default::default() }),
            set(proto::Attributes { sl: Some(16), ..Default::default() }),
            proto::Order { pkey: 0x1_0005, ..set(Default::default()) },
        ];
        for order in bad {
            let read = read(order.clone());
            assert!(matches!(read, Err(OrderError::Range { .. })), "{order:?}: {read:?}");
        }
        assert_eq!(read(proto::Order::default()), Err(OrderError::Nothing));
    }
}
