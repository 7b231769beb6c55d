//! Reads request bodies within their size limit and the memory of clients.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Incoming};
use tokio::time::timeout;

use crate::client_memory::MemoryClaim;
use crate::connection_waker::poll_body;

/// Bytes of a body that is refused which are read and discarded, so that the sender can read the response.
const MAX_DISCARDED: usize = 1 << 20;
/// Time spent on discarding.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);
/// Time in which a body must arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why a body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestBodyError {
    /// It is larger than allowed.
    TooLarge,
    /// Clients use too much memory.
    NoMemory,
    /// The connection ended before the body.
    Incomplete,
    /// It did not arrive in time.
    TimedOut,
}

/// The limits of one body.
pub(crate) struct BodyLimits {
    /// Largest size in bytes.
    pub(crate) size: usize,
    /// True if the client waits for `100 Continue` and sends nothing before.
    pub(crate) expects_continue: bool,
}

/// Reads a body. Its memory is counted in `claim`; a large body keeps that claim until its last slice is dropped. Some of a body
/// that is refused is read and discarded, because the sender might not read the response otherwise.
pub(crate) async fn read(
    body: &mut Incoming,
    limits: &BodyLimits,
    claim: &mut MemoryClaim,
) -> Result<Bytes, RequestBodyError> {
    if body.size_hint().lower() > limits.size as u64 {
        if !limits.expects_continue {
            discard(body).await;
        }
        return Err(RequestBodyError::TooLarge);
    }
    let read = read_in_time(read_frames(body, limits.size, claim)).await;
    if read == Err(RequestBodyError::NoMemory) {
        discard(body).await;
    }
    read
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
            return Err(RequestBodyError::TooLarge);
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

async fn discard(body: &mut Incoming) {
    let discarding = async {
        let mut discarded = 0;
        while discarded < MAX_DISCARDED
            && let Some(Ok(frame)) = body.frame().await
        {
            discarded += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // The client may send nothing more.
    let _ = timeout(DISCARD_TIMEOUT, discarding).await;
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
