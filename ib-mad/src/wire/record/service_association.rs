//! ServiceAssociationRecord: a ServiceKey and its ServiceName.

use super::components;
use crate::wire::field::layout;

layout! {
    /// ServiceAssociationRecord, 80 bytes (IBA 15.2.5.15).
    ///
    /// ```text
    ///  0 ServiceKey (16)   16 ServiceName (64)
    /// ```
    pub struct ServiceAssociationRecord(ServiceAssociationRecordRepr):
        "ServiceAssociationRecord", 80 bytes {
        /// ServiceKey.
        service_key: [u8; 16] [0 .. 128],
        /// ServiceName, zero-padded UTF-8.
        service_name: [u8; 64] [128 .. 640],
    }
}

components! {
    SERVICE_KEY = 0, "ServiceKey";
    SERVICE_NAME = 1, "ServiceName";
}
