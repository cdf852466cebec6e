//! Writes net files in the style of `ibnetdiscover`, for stock `ibsim` and our own reader.
//!
//! Information that the format cannot represent is lost: GUIDs and LIDs of adapter ports without a
//! cable (the reader numbers them from the node's), rates of ports without a cable (they get the
//! node's best), the rate of a node without any cable if it is FDR10 (QDR) or above HDR (HDR), and
//! control characters in descriptions (written as spaces).

use std::fmt;

use super::{LinkRate, LinkSpeed, Net, Node, NodeKind, PortRef};

impl fmt::Display for Net {
    /// The net file's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut default = LinkRate::default();
        for node in self.nodes() {
            f.write_str("\n")?;
            // Port lines with cables state their own rates.
            let has_cable = node.ports().any(|(_, port)| port.peer.is_some());
            if !has_cable && node.rate != default {
                default = node.rate;
                write_default_rate(f, default)?;
            }
            write_node(f, node)?;
            for (number, port) in node.ports() {
                if let Some(peer) = port.peer {
                    write_port(f, self, node, number, peer)?;
                }
            }
        }
        // A command of control characters only would leave a 'do' that cannot be read.
        let blank = |command: &String| command.chars().all(|c| c.is_control() || c == ' ');
        let mut commands = self.commands.iter().filter(|command| !blank(command)).peekable();
        if commands.peek().is_some() {
            f.write_str("\n")?;
        }
        for command in commands {
            writeln!(f, "do {}", Printable(command))?;
        }
        Ok(())
    }
}

/// Writes the settings for ports without a line.
fn write_default_rate(f: &mut fmt::Formatter<'_>, rate: LinkRate) -> fmt::Result {
    // ibsim 0.10 rejects extended speeds above HDR.
    let extended = rate.speed.min(LinkSpeed::Hdr).extended_mask_up_to();
    writeln!(f, "width={}", rate.width.mask_up_to())?;
    writeln!(f, "speed={}", rate.speed.mask_up_to())?;
    writeln!(f, "extspeed={extended}")
}

fn write_node(f: &mut fmt::Formatter<'_>, node: &Node) -> fmt::Result {
    writeln!(f, "vendid=0x{:x}", node.vendor_id)?;
    writeln!(f, "devid=0x{:x}", node.device_id)?;
    writeln!(f, "sysimgguid={}", node.system_image_guid)?;
    let description = Printable(&node.description);
    let (id, ports) = (&node.id, node.port_count());
    match (node.kind, node.port(0)) {
        (NodeKind::Switch, Some(port0)) => {
            let enhanced = if node.enhanced_port0 { "enhanced" } else { "base" };
            writeln!(f, "switchguid=0x{:x}({:x})", node.guid.0, port0.guid.0)?;
            writeln!(
                f,
                "Switch\t{ports} \"{id}\"\t\t# \"{description}\" {enhanced} port 0 lid {} lmc {}",
                port0.lid, port0.lmc
            )
        }
        (NodeKind::Router, _) => {
            writeln!(f, "rtguid=0x{:x}", node.guid.0)?;
            writeln!(f, "Rt\t{ports} \"{id}\"\t\t# \"{description}\"")
        }
        _ => {
            writeln!(f, "caguid=0x{:x}", node.guid.0)?;
            writeln!(f, "Ca\t{ports} \"{id}\"\t\t# \"{description}\"")
        }
    }
}

fn write_port(
    f: &mut fmt::Formatter<'_>,
    net: &Net,
    node: &Node,
    number: u8,
    peer: PortRef,
) -> fmt::Result {
    let peer_node = &net.nodes()[peer.node as usize];
    let (Some(port), Some(peer_port)) = (node.port(number), peer_node.port(peer.port)) else {
        return Err(fmt::Error);
    };
    write!(f, "[{number}]")?;
    if node.kind != NodeKind::Switch {
        write!(f, "({:x}) ", port.guid.0)?;
    }
    write!(f, "\t\"{}\"[{}]", peer_node.id, peer.port)?;
    let peer_lid = match peer_node.port(0) {
        Some(port0) => port0.lid,
        None => {
            write!(f, "({:x})", peer_port.guid.0)?;
            peer_port.lid
        }
    };
    f.write_str(" \t\t# ")?;
    if node.kind != NodeKind::Switch {
        write!(f, "lid {} lmc {} ", port.lid, port.lmc)?;
    }
    write!(f, "\"{}\" lid {peer_lid} {}", Printable(&peer_node.description), port.rate)?;
    match port.vl_cap {
        0 => writeln!(f),
        code => writeln!(f, " v={code}"),
    }
}

/// Replaces control characters, which could end the line.
struct Printable<'a>(&'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.contains(char::is_control) {
            return f.write_str(self.0);
        }
        self.0.chars().try_for_each(|c| write!(f, "{}", if c.is_control() { ' ' } else { c }))
    }
}
