//! Which role may call which service of this SM.

use sa_proto::serve::{Access, Call, Caller, Grounds};
use sa_proto::trust::Role;

use crate::observe::Origin;

/// Calls and the roles that may make them; the first that matches counts.
const CALLS: [Call; 13] = [
    ("/ibsa.snapshot.v1.SnapshotFeed/", &[Role::Responder]),
    ("/ibsa.registry.v1.Registry/", &[Role::Responder]),
    ("/ibsa.event.v1.Events/", &[Role::Responder]),
    ("/ibsa.partition.v1.Partitions/List", &[Role::Admin, Role::Viewer]),
    ("/ibsa.partition.v1.Partitions/", &[Role::Admin]),
    ("/ibsa.admin.v1.Admin/Sweep", &[Role::Admin]),
    ("/ibsa.admin.v1.Admin/Reroute", &[Role::Admin]),
    ("/ibsa.admin.v1.Admin/Adjust", &[Role::Admin]),
    ("/ibsa.admin.v1.Admin/GetSettings", &[Role::Admin]),
    ("/ibsa.admin.v1.Admin/ClearCounters", &[Role::Admin]),
    ("/ibsa.admin.v1.Admin/TakeBaseline", &[Role::Admin]),
    ("/ibsa.admin.v1.Admin/ClearBaseline", &[Role::Admin]),
    ("/ibsa.admin.v1.Admin/", &[Role::Admin, Role::Viewer]),
];

/// Who may call what.
pub(super) const ACCESS: Access = Access { calls: &CALLS, server: "this SM", remedy };

fn remedy(user: u32, needed: Role) -> String {
    format!(
        "run the command as root or as the user of ibsm, or start ibsm with --local-role \
         {user}={}",
        needed.name()
    )
}

/// Where a caller connected from.
pub(super) fn origin(caller: &Caller) -> Origin {
    Origin {
        ip: caller.address.ip(),
        is_identified: caller.grounds != Grounds::Insecure,
        share: Some(caller.share()).filter(|share| !share.is_own()),
    }
}

#[cfg(test)]
mod tests {
    use sa_proto::crowd::Share;
    use tonic::Status;

    use super::*;

    const WRITE: &str = "/ibsa.registry.v1.Registry/Write";
    const STATUS: &str = "/ibsa.admin.v1.Admin/GetStatus";
    const FABRICS: &str = "/ibsa.admin.v1.Admin/ListVirtualFabrics";
    const SWEEP: &str = "/ibsa.admin.v1.Admin/Sweep";

    fn by(grounds: Grounds, roles: &[Role]) -> Caller {
        Caller { address: ([127, 0, 0, 1], 9).into(), grounds, roles: roles.into() }
    }

    fn certified(path: &str, roles: &[Role]) -> Result<(), Status> {
        ACCESS.check(path, Some(&by(Grounds::Certificate, roles)))
    }

    /// Regression: no user of this host was counted.
    #[test]
    fn users_other_than_root_and_our_own_are_counted() {
        let share = |user| origin(&by(Grounds::User(user), &[Role::Responder])).share;
        let own = rustix::process::geteuid().as_raw();
        assert_eq!([share(0), share(own)], [None, None]);
        assert_eq!(share(own + 990), Some(Share::User(own + 990)));
        let certified = origin(&by(Grounds::Certificate, &[Role::Responder]));
        assert_eq!(certified.share, Some(Share::of_host([127, 0, 0, 1].into())));
    }

    #[test]
    fn viewers_list_virtual_fabrics() {
        assert!(certified(FABRICS, &[Role::Viewer]).is_ok());
        assert!(certified(FABRICS, &[Role::Responder]).is_err());
    }

    #[test]
    fn each_role_makes_its_own_calls_only() {
        for &(path, permitted) in ACCESS.calls {
            for held in Role::ALL {
                let is_permitted = permitted.contains(&held);
                assert_eq!(certified(path, &[held]).is_ok(), is_permitted, "{path} by {held:?}");
            }
            assert!(certified(path, &Role::ALL).is_ok());
            assert!(certified(path, &[]).is_err());
            assert!(ACCESS.check(path, None).is_err());
        }
    }

    #[test]
    fn a_viewer_changes_nothing() {
        assert!(certified(STATUS, &[Role::Viewer]).is_ok());
        let order = "/ibsa.partition.v1.Partitions/Give";
        let settings = "/ibsa.admin.v1.Admin/GetSettings";
        let baselines = ["TakeBaseline", "ClearBaseline"];
        for call in baselines {
            assert!(certified(&format!("/ibsa.admin.v1.Admin/{call}"), &[Role::Viewer]).is_err());
        }
        assert!(certified("/ibsa.admin.v1.Admin/GetBaseline", &[Role::Viewer]).is_ok());
        for path in [SWEEP, "/ibsa.admin.v1.Admin/Reroute", WRITE, order, settings] {
            assert!(certified(path, &[Role::Viewer]).is_err(), "{path}");
        }
    }

    #[test]
    fn a_service_that_is_not_listed_is_refused_to_all() {
        assert!(certified("/ibsa.registry.v1.Registries/Write", &Role::ALL).is_err());
        assert!(certified("", &Role::ALL).is_err());
    }

    #[test]
    fn a_refusal_names_the_role_held_and_the_role_needed() {
        assert_eq!(
            certified(WRITE, &[Role::Admin]).unwrap_err().message(),
            "ibsa.registry.v1.Registry/Write is for the role responder, a certificate with \
             urn:ibsm:role:responder as URI in its subject alternative name; this one gives the \
             role admin"
        );
        assert!(certified(STATUS, &[]).unwrap_err().message().ends_with("this one gives no role"));
        let user = by(Grounds::User(990), &[Role::Viewer]);
        assert_eq!(
            ACCESS.check(SWEEP, Some(&user)).unwrap_err().message(),
            "ibsa.admin.v1.Admin/Sweep is for the role admin, and user 990 of this host has the \
             role viewer; run the command as root or as the user of ibsm, or start ibsm with \
             --local-role 990=admin"
        );
    }
}
