//! InformInfoRecord: a subscription and its subscriber.

use super::components;
use crate::types::Gid;
use crate::wire::field::layout;

layout! {
    /// InformInfoRecord, 60 bytes (IBA 15.2.5.12).
    ///
    /// ```text
    ///  0 SubscriberGID (16)   16 Enum (2)   18 reserved (6)   24 InformInfo (36)
    /// ```
    pub struct InformInfoRecord(InformInfoRecordRepr): "InformInfoRecord", 60 bytes {
        /// GID of the subscriber.
        subscriber_gid: Gid [0 .. 128],
        /// Number of this subscription among the subscriber's ("Enum").
        enumeration: u16 [128 .. 144],
        /// InformInfo (IBA 13.4.8.3).
        inform_info: [u8; 36] [192 .. 480],
    }
}

components! {
    SUBSCRIBER_GID = 0, "SubscriberGID";
    ENUMERATION = 1, "Enum";
    GID = 3, "GID";
    LID_RANGE_BEGIN = 4, "LIDRangeBegin";
    LID_RANGE_END = 5, "LIDRangeEnd";
    IS_GENERIC = 7, "IsGeneric";
    SUBSCRIBE = 8, "Subscribe";
    TYPE = 9, "Type";
    TRAP_NUMBER = 10, "TrapNumber";
    QPN = 11, "QPN";
    RESP_TIME_VALUE = 13, "RespTimeValue";
    PRODUCER_TYPE = 15, "ProducerType";
}
