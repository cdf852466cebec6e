//! M_Key protection (14.2.4): who may ask and set, what a wrong key leads to.
//!
//! The lease runs in the fabric's time; here it is only begun and ended.

use ib_mad::types::Lid;
use ib_mad::wire::mad::Method;
use ib_mad::wire::smp::Smp;

use super::trap;
use crate::subnet::{Effect, PortIndex, Subnet};

/// Checks the key of a request that came in by `port`. Yields whether the asker knows the key
/// (there may be none), or `None` if the request is to be dropped.
pub(super) fn check(
    subnet: &mut Subnet,
    port: PortIndex,
    slid: Lid,
    request: &Smp<&[u8]>,
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
    // Bits 0 and 1 let everyone read; with bit 0 the key itself too.
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

/// The lease that began as number `lease` is over: whoever comes next may take the port, unless
/// the key's owner came back meanwhile.
pub(crate) fn lease_over(subnet: &mut Subnet, keeper: PortIndex, lease: u64) {
    if subnet.leases.get(&keeper) == Some(&lease) {
        subnet.leases.remove(&keeper);
        subnet.port_info_mut(keeper).set_m_key_protect_bits(0);
    }
}
