//! The rules of a fabric plane that apply.

use std::sync::Arc;

use sa_proto::snapshot::{FabricPlane, QosRule, RuleOrigin};

/// The rules that apply: those of the QoS policy only while QoS is on, those of virtual fabrics
/// always.
pub(super) fn in_force(plane: &FabricPlane) -> impl Iterator<Item = &Arc<QosRule>> {
    let applies =
        |rule: &&Arc<QosRule>| plane.subnet.qos || rule.origin == RuleOrigin::VirtualFabric;
    plane.qos_rules.iter().filter(applies)
}
