//! M_Key protection (IBA 14.2.4): which requests may read and set, and the effects of a wrong key.
//!
//! The lease period is timed by the fabric; this module only starts and stops it.

use ib_mad::types::Lid;
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::Method;
use ib_mad::wire::smp::Smp;

use super::trap;
use crate::subnet::{Effect, PortIndex, Subnet};

/// Checks the key of a request that arrived by `port`. Returns whether the requester showed the
/// M_Key (or none is set), or `None` if the request must be dropped.
pub(super) fn check(
    subnet: &mut Subnet,
    port: PortIndex,
    slid: Lid,
    request: &Smp<&[u8; MAD_LEN]>,
) -> Option<bool> {
    let keeper = subnet.management_port(port);
    let info = subnet.port_info(keeper);
    let key = info.m_key();
    if key == 0 {
        return Some(true);
    }
    if request.m_key() == key {
        subnet.leases.remove(&keeper);
        return Some(true);
    }
    // M_KeyProtectBits 0 and 1 let everyone read, 0 the key itself too.
    let protect = info.m_key_protect_bits();
    if request.method() == Method::GET && protect < 2 {
        return Some(protect == 0);
    }
    let violations = info.m_key_violations().saturating_add(1);
    let leased = info.m_key_lease_period() != 0 && protect != 0;
    subnet.port_info_mut(keeper).set_m_key_violations(violations);
    if leased && !subnet.leases.contains_key(&keeper) {
        subnet.leases_begun += 1;
        subnet.leases.insert(keeper, subnet.leases_begun);
        subnet.effects.push(Effect::LeaseBegun(keeper, subnet.leases_begun));
    }
    trap::bad_mkey(subnet, keeper, slid, request);
    None
}

/// Handles the expiry of lease number `lease`: any manager may take the port, unless a request with
/// the right key ended the lease before.
pub(crate) fn lease_over(subnet: &mut Subnet, keeper: PortIndex, lease: u64) {
    if subnet.leases.get(&keeper) == Some(&lease) {
        subnet.leases.remove(&keeper);
        subnet.port_info_mut(keeper).set_m_key_protect_bits(0);
    }
}
