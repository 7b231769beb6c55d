//! Reads request bodies within their size limit and the memory of clients.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use tokio::time::timeout;

use crate::client_memory::MemoryClaim;
use crate::connection_waker::poll_body;

/// Time in which a body must arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why a body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestBodyError {
    /// It is larger than allowed; its size, if the sender said it.
    TooLarge(Option<u64>),
    /// Clients use too much memory.
    NoMemory,
    /// The connection ended before the body.
    Incomplete,
    /// It did not arrive in time.
    TimedOut,
}

/// Reads a body of at most `limit` bytes. Its memory is counted in `claim`; a large body keeps that claim until its last slice is
/// dropped.
pub(crate) async fn read(
    body: &mut Incoming,
    limit: usize,
    claim: &mut MemoryClaim,
) -> Result<Bytes, RequestBodyError> {
    let size = body.size_hint();
    if size.lower() > limit as u64 {
        return Err(RequestBodyError::TooLarge(size.exact()));
    }
    read_in_time(read_frames(body, limit, claim)).await
}

/// Limits the time in which a body arrives. Most bodies arrive with their head and need no timer.
async fn read_in_time(
    reading: impl Future<Output = Result<Bytes, RequestBodyError>>,
) -> Result<Bytes, RequestBodyError> {
    let mut reading = pin!(reading);
    match poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await {
        Poll::Ready(read) => read,
        // Boxed to keep the future of a request small.
        Poll::Pending => {
            let read = Box::pin(timeout(BODY_TIMEOUT, reading)).await;
            read.unwrap_or(Err(RequestBodyError::TimedOut))
        }
    }
}

/// Reads a body to its end. The bytes of a body in one frame are not copied.
pub(crate) async fn read_frames(
    body: &mut (impl Body<Data = Bytes> + Unpin),
    limit: usize,
    claim: &mut MemoryClaim,
) -> Result<Bytes, RequestBodyError> {
    let mut first = Bytes::new();
    let mut all = Vec::new();
    while !body.is_end_stream()
        && let Some(frame) = poll_fn(|context| poll_body(body, context)).await
    {
        // Trailers are ignored.
        let Ok(data) = frame.map_err(|_| RequestBodyError::Incomplete)?.into_data() else { continue };
        if first.len() + all.len() + data.len() > limit {
            return Err(RequestBodyError::TooLarge(None));
        }
        if !claim.grow(data.len()) {
            return Err(RequestBodyError::NoMemory);
        }
        if first.is_empty() && all.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { claim.attach_large(first) } else { claim.attach_large(all) })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::Full;
    use toolcrib::Caller;

    use super::*;
    use crate::client_memory::{CallerMemory, ClientMemory, MIN_OWNED_BODY, MemoryAccount};

    #[tokio::test]
    async fn large_body_in_one_frame_keeps_its_claim() {
        let total = Arc::new(ClientMemory::new(1 << 20));
        let caller = Arc::new(CallerMemory::new(&Caller::local()));
        let account = MemoryAccount { total: total.clone(), caller };
        for (size, kept) in [(MIN_OWNED_BODY, MIN_OWNED_BODY), (MIN_OWNED_BODY - 1, 0)] {
            let mut claim = MemoryClaim::for_body(account.clone());
            let mut body = Full::new(Bytes::from(vec![b'x'; size]));
            let read = read_frames(&mut body, 1 << 20, &mut claim).await.unwrap();
            drop(claim);
            assert_eq!((read.len(), total.used()), (size, kept));
            drop(read);
            assert_eq!(total.used(), 0);
        }
    }
}
