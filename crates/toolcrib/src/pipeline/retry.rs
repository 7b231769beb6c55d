//! Whether a call that failed is made once more: the one place that decides it, by what went wrong and by what the tool
//! may do twice, within the time that the call has.

use tokio::time::{Instant, timeout_at};

use crate::cache::Flight;
use crate::call::{Call, Outcome};
use crate::catalog::Target;
use crate::class::{FailureClass, Sent};
use crate::connection::deadline::Deadline;
use crate::error::{Error, ErrorKind};
use crate::spec::Trust;
use crate::stock::Stock;

/// What a failure means for the call that met it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    /// The next try can end in no other way, or could do harm, or there is no time for one.
    No,
    /// No server can have worked on it: the next one may have it.
    Yes,
    /// A server may have worked on it.
    IfHarmless,
}

/// By what went wrong. A timeout has used up the time that there is; what a server said, or would not hear, it would say
/// again.
fn verdict(error: &Error) -> Again {
    match (error.kind(), error.sent()) {
        // It may be this very call that is too heavy.
        (ErrorKind::Lost, Sent::Maybe) if error.class() == Some(FailureClass::OverMemory) => Again::No,
        (ErrorKind::Lost, Sent::Never) => Again::Yes,
        (ErrorKind::Lost, Sent::Maybe) => Again::IfHarmless,
        _ => Again::No,
    }
}

/// Whether a call that failed like this may be made once more.
pub(super) fn may_repeat(stock: &Stock, error: &Error, call: &Call, target: &Target) -> bool {
    match verdict(error) {
        Again::No => false,
        Again::Yes => true,
        Again::IfHarmless => is_harmless(stock, call, target),
    }
}

/// Whether a tool may run twice because the config says so, or because a server says so that is trusted.
fn is_harmless(stock: &Stock, call: &Call, target: &Target) -> bool {
    let Some(Ok(entry)) = stock.registry.get(&target.server) else { return false };
    let spec = entry.spec();
    let says_so = || entry.listing().is_some_and(|listing| listing.may_repeat(&target.name));
    call.method() == "tools/call"
        && (spec.tools.may_repeat(&target.name) || (spec.trust == Trust::Trusted && says_so()))
}

/// The second try of a call that began then and failed with `first`. If its server is not up again within the time that
/// the call has, the first failure is the one to tell.
pub(super) async fn again(
    stock: &Stock,
    call: &mut Call,
    target: &Target,
    flight: Option<&Flight>,
    (first, began): (Error, Instant),
) -> Result<Outcome, Error> {
    let Some(Ok(entry)) = stock.registry.get(&target.server) else { return Err(first) };
    let until = Deadline::of(&entry.spec().limits, &entry.spec().tools, &target.name, began).first();
    let may_have_run = first.sent() == Sent::Maybe;
    call.left = may_have_run;
    let Ok(lease) = timeout_at(until, stock.registry.lease(&target.server, call)).await else {
        return Err(first);
    };
    let second = async {
        let mut lease = lease?;
        flight.into_iter().for_each(Flight::leaves);
        lease.send(call, &target.name, began).await
    };
    second.await.map_err(|error| if may_have_run { error.ran() } else { error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_lost_is_made_again_and_what_may_have_run_only_if_that_does_no_harm() {
        for kind in ErrorKind::ALL {
            let (error, lost) = (Error::new(kind, "no"), kind == ErrorKind::Lost);
            let may = |verdict| if lost { verdict } else { Again::No };
            assert_eq!(verdict(&error), may(Again::IfHarmless), "{kind:?}");
            assert_eq!(verdict(&error.clone().left()), may(Again::IfHarmless), "{kind:?}");
            let heavy = error.clone().of_class(FailureClass::OverMemory);
            assert_eq!(verdict(&heavy), Again::No, "{kind:?}");
            let hung = error.clone().of_class(FailureClass::Hung);
            assert_eq!(verdict(&hung), may(Again::IfHarmless), "{kind:?}");
            assert_eq!(verdict(&error.unsent()), may(Again::Yes), "{kind:?}");
        }
    }
}
