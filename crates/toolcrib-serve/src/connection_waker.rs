//! Wakes the task of a connection, except when a request takes the last part of its body.
//!
//! hyper wakes its connection whenever a part of a body is taken, so that it reads the next one. After the last part there is
//! nothing to read, and the connection and its request would be polled once more for nothing.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use toolcrib::util::locks::IgnorePoison as _;

thread_local! {
    static BODY_WAKES: Cell<BodyWakes> = const { Cell::new(BodyWakes::Passed) };
}

/// What happens to wakes of connections on this thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyWakes {
    /// They reach the task of the connection.
    Passed,
    /// They are held back, and there was none.
    Held,
    /// They are held back, and there was one.
    Pending,
}

/// The waker with which a connection of hyper is polled.
pub(crate) struct ConnectionWaker {
    task: Mutex<Waker>,
}

impl ConnectionWaker {
    /// Creates a waker without a task.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { task: Mutex::new(Waker::noop().clone()) })
    }

    /// Sets the task to wake.
    pub(crate) fn set_task(&self, task: &Waker) {
        self.task.lock().ignore_poison().clone_from(task);
    }
}

impl Wake for ConnectionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match BODY_WAKES.get() {
            BodyWakes::Passed => self.task.lock().ignore_poison().wake_by_ref(),
            BodyWakes::Held | BodyWakes::Pending => BODY_WAKES.set(BodyWakes::Pending),
        }
    }
}

/// Polls the body of a request. Its connection is woken unless this was the last part of the body.
pub(crate) fn poll_body<B: Body<Data = Bytes> + Unpin>(
    body: &mut B,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
    let held = HeldWakes::new();
    let polled = Pin::new(&mut *body).poll_frame(context);
    if held.release() && !body.is_end_stream() {
        context.waker().wake_by_ref();
    }
    polled
}

/// Holds back wakes of connections on this thread until it is dropped.
struct HeldWakes;

impl HeldWakes {
    fn new() -> Self {
        BODY_WAKES.set(BodyWakes::Held);
        Self
    }

    /// Returns whether there was a wake.
    fn release(self) -> bool {
        BODY_WAKES.get() == BodyWakes::Pending
    }
}

impl Drop for HeldWakes {
    fn drop(&mut self) {
        BODY_WAKES.set(BodyWakes::Passed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct CountedWakes(AtomicUsize);

    impl Wake for CountedWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A body that wakes its connection for each part that is taken, as that of hyper does.
    struct Parts {
        parts: VecDeque<Bytes>,
        connection: Waker,
    }

    impl Body for Parts {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.connection.wake_by_ref();
            Poll::Ready(self.parts.pop_front().map(|part| Ok(Frame::data(part))))
        }

        fn is_end_stream(&self) -> bool {
            self.parts.is_empty()
        }
    }

    #[test]
    fn last_part_of_a_body_does_not_wake_its_connection() {
        let wakes = Arc::<CountedWakes>::default();
        let count = || wakes.0.load(Ordering::Relaxed);
        let waker = ConnectionWaker::new();
        waker.set_task(&Waker::from(wakes.clone()));
        let connection = Waker::from(waker);
        let context = &mut Context::from_waker(&connection);
        let parts = ["one", "two"].map(Bytes::from).into();
        let mut body = Parts { parts, connection: connection.clone() };
        assert!(poll_body(&mut body, context).is_ready());
        assert_eq!(count(), 1, "the connection reads the second part");
        assert!(poll_body(&mut body, context).is_ready());
        assert_eq!(count(), 1, "there is no third part");
        connection.wake();
        assert_eq!(count(), 2, "other wakes pass");
    }
}
