//! ServiceRecord: a service advertised by a port.

use super::components;
use crate::types::{Gid, PKey};
use crate::wire::field::layout;

layout! {
    /// ServiceRecord, 176 bytes (IBA 15.2.5.14).
    ///
    /// ```text
    ///   0 ServiceID (8)         8 ServiceGID (16)      24 ServiceP_Key (2)   26 reserved (2)
    ///  28 ServiceLease (4)     32 ServiceKey (16)      48 ServiceName (64)
    /// 112 ServiceData8 (16)   128 ServiceData16 (16)  144 ServiceData32 (16)
    /// 160 ServiceData64 (16)
    /// ```
    pub struct ServiceRecord(ServiceRecordRepr): "ServiceRecord", 176 bytes {
        /// Service ID.
        service_id: u64 [0 .. 64],
        /// GID of the port that offers the service.
        service_gid: Gid [64 .. 192],
        /// P_Key by which to reach the service.
        service_pkey: PKey [192 .. 208],
        /// Lease in seconds; 0xFFFFFFFF for an infinite lease.
        service_lease: u32 [224 .. 256],
        /// ServiceKey: required to change the record; returned to trusted requesters only.
        service_key: [u8; 16] [256 .. 384],
        /// Name, zero-padded UTF-8.
        service_name: [u8; 64] [384 .. 896],
        /// Sixteen bytes, defined by the service.
        service_data8: [u8; 16] [896 .. 1024],
        /// Eight 16-bit words, big-endian.
        service_data16: [u8; 16] [1024 .. 1152],
        /// Four 32-bit words, big-endian.
        service_data32: [u8; 16] [1152 .. 1280],
        /// Two 64-bit words, big-endian.
        service_data64: [u8; 16] [1280 .. 1408],
    }
}

components! {
    SERVICE_ID = 0, "ServiceID";
    SERVICE_GID = 1, "ServiceGID";
    SERVICE_PKEY = 2, "ServiceP_Key";
    SERVICE_LEASE = 4, "ServiceLease";
    SERVICE_KEY = 5, "ServiceKey";
    SERVICE_NAME = 6, "ServiceName";
    SERVICE_DATA8_0 = 7, "ServiceData8.1";
    SERVICE_DATA8_1 = 8, "ServiceData8.2";
    SERVICE_DATA8_2 = 9, "ServiceData8.3";
    SERVICE_DATA8_3 = 10, "ServiceData8.4";
    SERVICE_DATA8_4 = 11, "ServiceData8.5";
    SERVICE_DATA8_5 = 12, "ServiceData8.6";
    SERVICE_DATA8_6 = 13, "ServiceData8.7";
    SERVICE_DATA8_7 = 14, "ServiceData8.8";
    SERVICE_DATA8_8 = 15, "ServiceData8.9";
    SERVICE_DATA8_9 = 16, "ServiceData8.10";
    SERVICE_DATA8_10 = 17, "ServiceData8.11";
    SERVICE_DATA8_11 = 18, "ServiceData8.12";
    SERVICE_DATA8_12 = 19, "ServiceData8.13";
    SERVICE_DATA8_13 = 20, "ServiceData8.14";
    SERVICE_DATA8_14 = 21, "ServiceData8.15";
    SERVICE_DATA8_15 = 22, "ServiceData8.16";
    SERVICE_DATA16_0 = 23, "ServiceData16.1";
    SERVICE_DATA16_1 = 24, "ServiceData16.2";
    SERVICE_DATA16_2 = 25, "ServiceData16.3";
    SERVICE_DATA16_3 = 26, "ServiceData16.4";
    SERVICE_DATA16_4 = 27, "ServiceData16.5";
    SERVICE_DATA16_5 = 28, "ServiceData16.6";
    SERVICE_DATA16_6 = 29, "ServiceData16.7";
    SERVICE_DATA16_7 = 30, "ServiceData16.8";
    SERVICE_DATA32_0 = 31, "ServiceData32.1";
    SERVICE_DATA32_1 = 32, "ServiceData32.2";
    SERVICE_DATA32_2 = 33, "ServiceData32.3";
    SERVICE_DATA32_3 = 34, "ServiceData32.4";
    SERVICE_DATA64_0 = 35, "ServiceData64.1";
    SERVICE_DATA64_1 = 36, "ServiceData64.2";
}

/// An infinite lease.
pub const LEASE_INDEFINITE: u32 = u32::MAX;
