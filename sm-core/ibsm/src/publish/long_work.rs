//! Work for callers that takes a thread for seconds: lists of all paths, and measurements of
//! tables. Of each kind little is done at a time, one piece for a user or host, and one place is
//! kept for administrators.

use sa_proto::crowd::Share;
use sa_proto::quota::{Full, Place, Places};
use sa_proto::serve::Caller;
use sa_proto::trust::Role;
use tonic::{Request, Status};

use super::answering::share_of;

/// Places for lists of all paths.
const LISTS_OF_PATHS_MAX: usize = 3;
/// Places for measurements.
const MEASUREMENTS_MAX: usize = 2;

/// Places for one kind of work.
#[derive(Clone)]
pub(super) struct LongWork {
    /// What is being done, for refusals.
    what: &'static str,
    places: Places<Share>,
}

impl LongWork {
    /// Lists of all paths.
    pub(super) fn lists_of_paths() -> Self {
        Self::new("paths are being listed", LISTS_OF_PATHS_MAX)
    }

    /// Measurements of tables.
    pub(super) fn measurements() -> Self {
        Self::new("tables are being measured", MEASUREMENTS_MAX)
    }

    fn new(what: &'static str, max: usize) -> Self {
        Self { what, places: Places::new(max, 1).with_reserve(1) }
    }

    /// A place for the work that is requested, or the refusal.
    pub(super) fn enter<T>(&self, request: &Request<T>) -> Result<Place<Share>, Status> {
        let caller = request.extensions().get::<Caller>();
        let is_admin = caller.is_some_and(|caller| caller.roles.contains(&Role::Admin));
        self.places.enter_as(is_admin, share_of(request)).map_err(|full| {
            let whom = match full {
                Full::Share => "you",
                Full::All => "others",
            };
            let text = format!("{} for {whom} already; retry in a moment", self.what);
            Status::resource_exhausted(text)
        })
    }
}
