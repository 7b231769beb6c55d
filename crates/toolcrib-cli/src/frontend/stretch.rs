//! A stretch of requests on one HTTP/1 connection. hyper keeps 16 KiB of buffers for each connection that it serves, so it
//! is let go as soon as a stretch has lasted a moment and nothing is under way.

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep;

use super::body::Body;
use super::http::{Counter, answer};
use super::lasting::Leaving;
use super::line::Line;

/// How long hyper stays at least. Whoever asks again within this time does not pay for it anew.
const MOMENT: Duration = Duration::from_millis(200);

/// How a stretch ended.
pub(super) enum Ended {
    /// So did the connection.
    Over,
    /// This answer wants to leave with the connection.
    Left(Box<Response<Body>>),
    /// Nothing is under way.
    Paused {
        /// Whether anything was asked.
        asked: bool,
        /// Whether a request has begun to arrive.
        begun: bool,
    },
}

/// What all requests of a stretch share, each until its answer is written.
#[derive(Default)]
struct UnderWay {
    leaving: Leaving,
    asked: AtomicBool,
}

/// Serves a connection until it ends or its client pauses; once the gateway stops, the request under way is its last.
pub(super) async fn serve<I>(line: &Line<I>, counter: &Arc<Counter>) -> Ended
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let under_way = Arc::<UnderWay>::default();
    let (shared, at) = (under_way.clone(), counter.clone());
    let service = service_fn(move |request: Request<_>| {
        let (counter, under_way) = (at.clone(), shared.clone());
        under_way.asked.store(true, Ordering::Relaxed);
        // In a box of its own: a connection keeps as much room as this future has, also while it only listens.
        Box::pin(async move {
            let may_leave = Leaving::may(&request);
            let response = answer(&counter, request).await;
            let stays = if may_leave { under_way.leaving.put(response) } else { Some(response) };
            match stays {
                Some(response) => Ok::<_, Infallible>(response.map(|body| Held { body, _until: under_way })),
                None => pending().await,
            }
        })
    });
    let mut builder = http1::Builder::new();
    // Whoever calls this knows how long a head has been on its way.
    let builder = builder.header_read_timeout(None);
    let mut connection = builder.serve_connection(TokioIo::new(line.clone()), service).with_upgrades();
    let mut moment = pin!(sleep(MOMENT));
    let ended = tokio::select! {
        ended = poll_fn(|context| match poll(line, &under_way, &mut connection, context) {
            Poll::Pending if is_idle(&under_way) && !line.is_writing() => {
                moment.as_mut().poll(context).map(|()| None)
            }
            polled => polled.map(Some),
        }) => ended,
        () = counter.stop.cancelled() => {
            Pin::new(&mut connection).graceful_shutdown();
            Some(poll_fn(|context| poll(line, &under_way, &mut connection, context)).await)
        }
    };
    ended.unwrap_or_else(|| Ended::Paused {
        asked: under_way.asked.load(Ordering::Relaxed),
        begun: connection.into_parts().is_some_and(|parts| line.take_back(&parts.read_buf)),
    })
}

/// Ready when the connection is over, its client gone, or when an answer wants to leave with it.
fn poll<I: AsyncRead + Unpin>(
    line: &Line<I>,
    under_way: &UnderWay,
    connection: &mut (impl Future + Unpin),
    context: &mut Context<'_>,
) -> Poll<Ended> {
    match under_way.leaving.poll(connection, context) {
        Poll::Pending if line.is_gone(context) => Poll::Ready(Ended::Over),
        polled => polled.map(|left| left.map_or(Ended::Over, |response| Ended::Left(Box::new(response)))),
    }
}

/// Whether only the stretch itself and its service are left, and no request.
fn is_idle(under_way: &Arc<UnderWay>) -> bool {
    Arc::strong_count(under_way) == 2
}

/// An answer that is under way until all of it was handed over to be written.
struct Held {
    body: Body,
    _until: Arc<UnderWay>,
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
