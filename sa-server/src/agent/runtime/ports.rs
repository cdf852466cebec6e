//! Finds the InfiniBand ports of this host, as the kernel lists them in `/sys/class/infiniband`.

use std::io;
use std::path::{Path, PathBuf};

use ib_mad::types::Guid;

use crate::agent::host::{Name, PORTS_MAX};

/// Why there are no ports to answer for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortsError {
    /// The list cannot be read.
    #[error("cannot list RDMA devices in {}: {source}", path.display())]
    Read {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No port is on the list, or none fits `--device` and `--port`.
    #[error("{} lists no InfiniBand port{wanted}", path.display())]
    None {
        /// The directory.
        path: PathBuf,
        /// The restriction, for the message.
        wanted: String,
    },
    /// There are too many.
    #[error("this host has more than {PORTS_MAX} InfiniBand ports; choose by --device and --port")]
    TooMany,
}

/// The ports in `sysfs`, by device and number.
pub(super) fn find(
    sysfs: &Path,
    device: Option<&str>,
    port: Option<u8>,
) -> Result<Vec<(Name, Guid)>, PortsError> {
    let list = |path: &Path| -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name()));
        let names: io::Result<Vec<_>> = entries.collect();
        Ok(names?.into_iter().filter_map(|name| name.into_string().ok()).collect())
    };
    let devices = list(sysfs).map_err(|source| PortsError::Read { path: sysfs.into(), source })?;
    let mut found = Vec::new();
    for name in devices.into_iter().filter(|name| device.is_none_or(|wanted| wanted == name)) {
        let ports = sysfs.join(&name).join("ports");
        // The device may have gone meanwhile.
        for number in list(&ports).unwrap_or_default() {
            let Ok(number) = number.parse::<u8>() else { continue };
            let of_port = ports.join(number.to_string());
            if port.is_none_or(|wanted| wanted == number)
                && let Some(guid) = guid(&of_port)
            {
                found.push((Name { device: name.clone(), port: number }, guid));
            }
        }
    }
    found.sort_by(|(a, _), (b, _)| (&a.device, a.port).cmp(&(&b.device, b.port)));
    match found.len() {
        0 => {
            let device = device.map(|device| format!(" of device {device}")).unwrap_or_default();
            let port = port.map(|port| format!(" with number {port}")).unwrap_or_default();
            Err(PortsError::None { path: sysfs.into(), wanted: device + &port })
        }
        1..=PORTS_MAX => Ok(found),
        _ => Err(PortsError::TooMany),
    }
}

/// The GUID of a port, if it is an InfiniBand port: the lower half of its first GID.
fn guid(port: &Path) -> Option<Guid> {
    let layer = std::fs::read_to_string(port.join("link_layer")).ok()?;
    if layer.trim() != "InfiniBand" {
        return None;
    }
    let gid = std::fs::read_to_string(port.join("gids/0")).ok()?;
    let gid: std::net::Ipv6Addr = gid.trim().parse().ok()?;
    let guid = u128::from(gid) as u64;
    (guid != 0).then_some(Guid(guid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(sysfs: &Path, device: &str, port: u8, layer: &str, gid: &str) {
        let port = sysfs.join(device).join("ports").join(port.to_string());
        std::fs::create_dir_all(port.join("gids")).unwrap();
        std::fs::write(port.join("link_layer"), format!("{layer}\n")).unwrap();
        std::fs::write(port.join("gids/0"), format!("{gid}\n")).unwrap();
    }

    #[test]
    fn infiniband_ports_are_found_by_their_first_gid() {
        let sysfs = tempfile::tempdir().unwrap();
        let sysfs = sysfs.path();
        let none = find(sysfs, Some("mlx5_9"), None).unwrap_err().to_string();
        assert!(none.ends_with("lists no InfiniBand port of device mlx5_9"), "{none}");
        add(sysfs, "mlx5_1", 1, "InfiniBand", "fe80:0000:0000:0000:b859:9f03:00aa:0001");
        add(sysfs, "mlx5_0", 2, "InfiniBand", "fec0:0000:0000:0001:b859:9f03:00aa:0002");
        add(sysfs, "mlx5_0", 1, "InfiniBand", "fe80:0000:0000:0000:b859:9f03:00aa:0003");
        add(sysfs, "mlx5_2", 1, "Ethernet", "fe80:0000:0000:0000:b859:9fff:feaa:0004");
        add(sysfs, "mlx5_3", 1, "InfiniBand", "0000:0000:0000:0000:0000:0000:0000:0000");
        let found = |device, port| {
            let ports = find(sysfs, device, port).unwrap();
            ports.into_iter().map(|(name, guid)| (name.device, name.port, guid.0)).collect()
        };
        let all: Vec<(String, u8, u64)> = found(None, None);
        let port =
            |device: &str, port, low: u64| (device.to_owned(), port, 0xb859_9f03_00aa_0000 + low);
        assert_eq!(all, [port("mlx5_0", 1, 3), port("mlx5_0", 2, 2), port("mlx5_1", 1, 1)]);
        let one: Vec<_> = found(Some("mlx5_0"), Some(2));
        assert_eq!(one, [port("mlx5_0", 2, 2)]);
        let missing = sysfs.join("none");
        assert!(matches!(find(&missing, None, None), Err(PortsError::Read { .. })));
    }
}
