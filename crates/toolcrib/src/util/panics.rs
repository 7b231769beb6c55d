//! Contains panics of the embedder's functions, so that they do not end a task of the library.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Calls a function of the embedder. Returns `None` and logs the panic if it panics; `role` names the function.
pub(crate) fn contain<T>(role: &'static str, function: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(function)) {
        Ok(returned) => Some(returned),
        Err(panic) => {
            log_panic(role, &*panic);
            None
        }
    }
}

/// Like [`contain`], for a future.
pub(crate) async fn contain_future<T>(role: &'static str, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(move |context| match contain(role, || future.as_mut().poll(context)) {
        Some(Poll::Ready(output)) => Poll::Ready(Some(output)),
        Some(Poll::Pending) => Poll::Pending,
        None => Poll::Ready(None),
    })
    .await
}

fn log_panic(role: &'static str, panic: &(dyn Any + Send)) {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!("the {role} panicked: {}", message.unwrap_or("no message"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_with_any_payload_is_none() {
        assert_eq!(contain("test", || 7), Some(7));
        assert_eq!(contain("test", || -> u8 { panic!("on purpose") }), None);
        assert_eq!(contain("test", || -> u8 { std::panic::panic_any(7) }), None);
    }

    #[tokio::test]
    async fn panic_after_an_await_is_none() {
        let output = contain_future("test", async {
            tokio::task::yield_now().await;
            7
        });
        assert_eq!(output.await, Some(7));
        let panicking = contain_future("test", async {
            tokio::task::yield_now().await;
            panic!("on purpose")
        });
        assert_eq!(panicking.await, None::<u8>);
    }
}
