//! Threads without which a manager answers no write.

use tracing::error;

/// Ends the process if the thread that owns this panics. A master that lives and acknowledges
/// nothing would keep any standby from taking over.
#[derive(Debug)]
pub(in crate::runtime) struct Vital(pub(in crate::runtime) &'static str);

impl Drop for Vital {
    fn drop(&mut self) {
        if std::thread::panicking() {
            error!("the {} thread panicked: ending the process", self.0);
            std::process::abort();
        }
    }
}
