//! CongestionLog, of switches and of channel adapters.

use std::ops::Range;

use crate::types::{Lid, Qpn, Sl};
use crate::wire::MAD_LEN;
use crate::wire::field::layout;

/// Position of CongestionLog in a MAD.
pub const LOG_DATA: Range<usize> = 32..MAD_LEN;
/// LogType of switches.
pub const LOG_TYPE_SWITCH: u8 = 1;
/// LogType of channel adapters.
pub const LOG_TYPE_CA: u8 = 2;
/// Events in the log of a switch.
pub const LOG_EVENTS_SWITCH: usize = 15;
/// Events in the log of a channel adapter.
pub const LOG_EVENTS_CA: usize = 13;

const SWITCH_EVENT_LEN: usize = 12;
const CA_EVENT_LEN: usize = 16;

layout! {
    /// CongestionLog of a switch, 220 bytes (IBA A10.4.3.5): which ports marked packets, and the
    /// packets of the latest events. Reading it sets the counter and the map of ports to 0.
    ///
    /// ```text
    ///  0 LogType   1 CongestionFlags   2 LogEventsCounter (2)   4 CurrentTimeStamp (4)
    ///  8 PortMap (32)                 40 LogEvents (15 x 12)
    /// ```
    pub struct CongestionLogSwitch(CongestionLogSwitchRepr): "CongestionLog", 220 bytes {
        /// [`LOG_TYPE_SWITCH`].
        log_type: u8 [0 .. 8],
        /// Bit 0: the credit starvation occurred.
        congestion_flags: u8 [8 .. 16],
        /// Events since the log was last read, saturating.
        log_events_counter: u16 [16 .. 32],
        /// The switch's clock, in 1.024 us.
        current_time_stamp: u32 [32 .. 64],
        /// Ports that marked packets with a FECN since the log was last read.
        port_map: [u8; 32] [64 .. 320],
        /// The latest events, [`CongestionLogEventSwitch`] each.
        events: [u8; 180] [320 .. 1760],
    }
}

layout! {
    /// An event in the log of a switch, 12 bytes (IBA A10.4.3.5): a packet that was marked.
    ///
    /// ```text
    ///  0 SLID (2)   2 DLID (2)   4 SL:4 reserved:28   8 Timestamp (4)
    /// ```
    pub struct CongestionLogEventSwitch(CongestionLogEventSwitchRepr):
        "CongestionLogEvent", 12 bytes
    {
        /// Source of the packet.
        slid: Lid [0 .. 16],
        /// Destination of the packet.
        dlid: Lid [16 .. 32],
        /// Its service level.
        sl: Sl [32 .. 36],
        /// The switch's clock at that time.
        timestamp: u32 [64 .. 96],
    }
}

layout! {
    /// CongestionLog of a channel adapter, 220 bytes (IBA A10.4.3.5): queue pairs whose index into
    /// the table of delays reached its threshold. Reading it sets the counter and the map to 0.
    ///
    /// ```text
    ///  0 LogType   1 CongestionFlags   2 ThresholdEventCounter (2)
    ///  4 ThresholdCongestionEventMap (2)   6 reserved (2)   8 CurrentTimeStamp (4)
    /// 12 LogEvents (13 x 16)
    /// ```
    pub struct CongestionLogCa(CongestionLogCaRepr): "CongestionLog", 220 bytes {
        /// [`LOG_TYPE_CA`].
        log_type: u8 [0 .. 8],
        /// Congestion flags.
        congestion_flags: u8 [8 .. 16],
        /// Events since the log was last read, saturating.
        threshold_event_counter: u16 [16 .. 32],
        /// SLs with an event since then, as bits.
        threshold_congestion_event_map: u16 [32 .. 48],
        /// The adapter's clock, in 1.024 us.
        current_time_stamp: u32 [64 .. 96],
        /// The latest events, [`CongestionLogEventCa`] each.
        events: [u8; 208] [96 .. 1760],
    }
}

layout! {
    /// An event in the log of a channel adapter, 16 bytes (IBA A10.4.3.5).
    ///
    /// ```text
    ///  0 Local_QP:24 SL:4 Service_Type:4   4 Remote_QP:24 reserved:8
    ///  8 Local_LID (2)   10 Remote_LID (2)  12 Timestamp (4)
    /// ```
    pub struct CongestionLogEventCa(CongestionLogEventCaRepr): "CongestionLogEvent", 16 bytes {
        /// The queue pair that reached the threshold.
        local_qp: Qpn [0 .. 24],
        /// Its service level.
        sl: Sl [24 .. 28],
        /// Its service: 0 reliable, 1 unreliable connection, 2 reliable, 3 unreliable datagram.
        service_type: u8 [28 .. 32],
        /// The queue pair at the other end.
        remote_qp: Qpn [32 .. 56],
        /// The adapter's LID.
        local_lid: Lid [64 .. 80],
        /// LID of the other end.
        remote_lid: Lid [80 .. 96],
        /// The adapter's clock at that time.
        timestamp: u32 [96 .. 128],
    }
}

impl<T: AsRef<[u8]>> CongestionLogSwitch<T> {
    /// The events; places without one are left out.
    pub fn list(&self) -> impl Iterator<Item = CongestionLogEventSwitchRepr> {
        let events: [[u8; SWITCH_EVENT_LEN]; LOG_EVENTS_SWITCH] = split(&self.events());
        let used = events.into_iter().filter(|event| *event != [0; SWITCH_EVENT_LEN]);
        used.filter_map(|event| {
            CongestionLogEventSwitchRepr::parse(&CongestionLogEventSwitch::of(&event)).ok()
        })
    }
}

impl<T: AsRef<[u8]>> CongestionLogCa<T> {
    /// The events; places without one are left out.
    pub fn list(&self) -> impl Iterator<Item = CongestionLogEventCaRepr> {
        let events: [[u8; CA_EVENT_LEN]; LOG_EVENTS_CA] = split(&self.events());
        let used = events.into_iter().filter(|event| *event != [0; CA_EVENT_LEN]);
        used.filter_map(|event| {
            CongestionLogEventCaRepr::parse(&CongestionLogEventCa::of(&event)).ok()
        })
    }
}

/// Cuts bytes into pieces of equal length.
fn split<const LEN: usize, const COUNT: usize>(bytes: &[u8]) -> [[u8; LEN]; COUNT] {
    let mut pieces = [[0; LEN]; COUNT];
    for (piece, from) in pieces.iter_mut().zip(bytes.chunks_exact(LEN)) {
        piece.copy_from_slice(from);
    }
    pieces
}
