//! FDR10, a speed of Mellanox and NVIDIA devices between QDR and FDR that PortInfo does not cover.
//! It is read and set with a vendor attribute (`fdr10`).
//!
//! As with OpenSM the setting takes effect when the link is next trained; no link is taken down for
//! it. Only ports whose links run at QDR by PortInfo are queried: others run without FDR10, or
//! faster.

use ib_mad::wire::attribute::{
    LinkSpeeds, LinkSpeedsExt, MlnxExtPortInfo, MlnxLinkSpeeds, PortState,
};
use ib_mad::wire::mad::Status;
use tracing::debug;

use crate::fabric::PortIndex;
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};

/// StateChangeEnable: LinkSpeedEnabled is meant.
const SPEED_ENABLED: u8 = 1;
/// Values of `fdr10`.
const TURN_ON: u8 = 1;
const TURN_OFF: u8 = 2;

impl Subnet {
    /// Queries the FDR10 setting of a port whose PortInfo was read, if the port may support it.
    pub(in crate::sweep) fn ask_for_fdr10(&mut self, port: PortIndex) {
        let info = self.fabric.port(port).port_info();
        let is_qdr = info.link_speed_active() == LinkSpeeds::QDR
            && info.link_speed_ext_active() == LinkSpeedsExt::NONE;
        let is_new = self.fabric.port(port).mlnx_speeds.is_none()
            || self.fabric.port(port).state() == Some(PortState::Initialize);
        let node = self.fabric.node_of(port).node_info();
        let speaks = speaks_mlnx_ext_port_info(node.vendor_id(), node.device_id());
        if self.settings.fdr10 != 0 && is_qdr && is_new && speaks {
            self.exchange.push(Request::new(Kind::MlnxExtPortInfo, port));
        }
    }

    /// The FDR10 setting to write to a port; `None` if it has none or needs no change.
    fn wanted_fdr10(&self, port: PortIndex) -> Option<[u8; 64]> {
        let (supported, enabled) = self.fabric.port(port).mlnx_speeds?;
        let has = |speeds: MlnxLinkSpeeds| speeds.0 & MlnxLinkSpeeds::FDR10.0 != 0;
        let wanted = match self.settings.fdr10 {
            TURN_ON => MlnxLinkSpeeds::FDR10,
            TURN_OFF => MlnxLinkSpeeds::NONE,
            _ => return None,
        };
        if !has(supported) || has(enabled) == has(wanted) {
            return None;
        }
        let mut bytes = [0; 64];
        MlnxExtPortInfo::of_mut(&mut bytes)
            .set_state_change_enable(SPEED_ENABLED)
            .set_link_speed_supported(supported)
            .set_link_speed_enabled(wanted);
        Some(bytes)
    }

    /// Writes the FDR10 setting to ports whose links are up.
    pub(in crate::sweep) fn set_fdr10(&mut self, linked: &[PortIndex]) {
        for &port in linked {
            if self.wanted_fdr10(port).is_some() {
                self.exchange.push(Request::new(Kind::SetMlnxExtPortInfo, port));
            }
        }
    }
}

/// FDR10, as owner of the requests that read and set it.
pub(in crate::sweep) struct Fdr10;

impl RequestOwner for Fdr10 {
    type Kind = kinds::Fdr10;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::Fdr10::MlnxExtPortInfo => {}
            kinds::Fdr10::SetMlnxExtPortInfo => *data = subnet.wanted_fdr10(request.port())?,
        }
        Some(subnet.fabric.port(request.port()).num.0.into())
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { kind, request, .. } = owned;
        let info = MlnxExtPortInfo::of(data);
        let speeds = (info.link_speed_supported(), info.link_speed_enabled());
        let port = request.port();
        subnet.fabric.port_mut(port).mlnx_speeds = Some(speeds);
        match kind {
            kinds::Fdr10::MlnxExtPortInfo => {}
            kinds::Fdr10::SetMlnxExtPortInfo => {
                if subnet.wanted_fdr10(port).is_some() {
                    let place = subnet.place(port);
                    subnet.node_anomaly(
                        port,
                        format_args!("{place} did not change its FDR10 setting"),
                    );
                }
            }
        }
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::Fdr10::MlnxExtPortInfo => report_no_support(subnet, request),
            kinds::Fdr10::SetMlnxExtPortInfo => subnet.report_refusal(request, status),
        }
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::Fdr10::MlnxExtPortInfo => report_no_support(subnet, request),
            kinds::Fdr10::SetMlnxExtPortInfo => subnet.report_silence(request),
        }
    }
}

/// Logs that a device does not answer: not all firmware versions support the attribute.
fn report_no_support(subnet: &Subnet, request: Request) {
    debug!("{} reports no FDR10 information", subnet.place(request.port()));
}

/// Whether a device supports the attribute, by the vendor and device IDs that OpenSM lists.
fn speaks_mlnx_ext_port_info(vendor: u32, device: u16) -> bool {
    /// Bull, which uses device IDs of its own.
    const BULL: u32 = 0x119f;
    match device {
        // ConnectX-3 to ConnectX-6, Connect-IB, BlueField.
        0x1003..=0x101b | 0xa2d2 => true,
        // SwitchX, Switch-IB, Switch-IB 2, Quantum.
        0xc738..=0xc73b | 0xc839 | 0xcb20 | 0xcf08 | 0xcf09 | 0xd2f0 => true,
        _ if vendor != BULL => false,
        0x1b02 | 0x1b50 | 0x1ba0 | 0x1bd0..=0x1bd5 | 0x1bf0 => true,
        0x1b33 | 0x1b73 | 0x1b40 | 0x1b41 | 0x1b60 | 0x1b61 => true,
        0x1b83 | 0x1b93 | 0x1b94 | 0x1bb4 | 0x1bb5 | 0x1bc4..=0x1bc6 => true,
        _ => false,
    }
}
