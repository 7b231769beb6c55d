//! A connection that can move to another thread.

use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::{MAIN, Thread, Threads};

/// Size up to which the head and the body of a response are joined. For 280 bytes, copying and
/// sending one piece takes 5 % less time than sending two.
const MAX_JOINED: usize = 4 << 10;

/// The thread that a connection is on. Its task changes it, its stream follows.
#[derive(Debug)]
pub(in crate::gateway) struct ConnectionPlace {
    threads: Arc<Threads>,
    thread: Arc<AtomicUsize>,
}

impl ConnectionPlace {
    /// Places a new connection.
    pub(in crate::gateway) fn new(threads: Arc<Threads>) -> Self {
        let thread = threads.for_new.load(Ordering::Relaxed);
        threads.all[thread].connections.fetch_add(1, Ordering::Relaxed);
        Self { threads, thread: Arc::new(AtomicUsize::new(thread)) }
    }

    /// Spawns the task of the connection on its thread. `tasks` waits for it, also after it has moved.
    pub(in crate::gateway) fn spawn(
        self,
        tasks: TaskTracker,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        MovableTask::spawn(ConnectionTask { place: self, tasks, task: Box::pin(task) });
    }

    fn index(&self) -> usize {
        self.thread.load(Ordering::Relaxed)
    }

    fn thread(&self) -> &Thread {
        &self.threads.all[self.index()]
    }

    /// Moves to another thread and returns true, if that was requested.
    fn follow_request(&self) -> bool {
        let Some(target) = self.threads.take_move(self.index()) else { return false };
        self.thread().connections.fetch_sub(1, Ordering::Relaxed);
        self.thread.store(target, Ordering::Relaxed);
        self.thread().connections.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.thread().connections.fetch_sub(1, Ordering::Relaxed);
    }
}

struct ConnectionTask {
    place: ConnectionPlace,
    tasks: TaskTracker,
    task: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The task of a connection on one thread. It ends when the connection ends, or continues as a task of another thread: what it
/// waits for is polled there at once, so that no wake-up is lost.
struct MovableTask(Option<ConnectionTask>);

impl MovableTask {
    fn spawn(task: ConnectionTask) {
        let tasks = task.tasks.clone();
        let runtime = task.place.thread().runtime.clone();
        tasks.spawn_on(Self(Some(task)), &runtime);
    }
}

impl Future for MovableTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(running) = &mut self.0 else { return Poll::Ready(()) };
        if running.task.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !running.place.follow_request() {
            return Poll::Pending;
        }
        self.0.take().into_iter().for_each(Self::spawn);
        Poll::Ready(())
    }
}

/// A TCP stream that is registered with the runtime of its connection's thread.
#[derive(Debug)]
pub(in crate::gateway) struct MovableStream {
    /// Absent after it could not be registered.
    stream: Option<TcpStream>,
    /// The thread that it is registered with.
    registered: usize,
    /// The thread that the connection is on.
    thread: Arc<AtomicUsize>,
}

impl MovableStream {
    /// Takes a stream that is registered with the main thread. Without a place it stays there.
    pub(in crate::gateway) fn new(stream: TcpStream, place: Option<&ConnectionPlace>) -> Self {
        let thread = place.map_or_else(Arc::default, |place| place.thread.clone());
        Self { stream: Some(stream), registered: MAIN, thread }
    }

    /// Returns the address that the client connected to.
    pub(in crate::gateway) fn local_addr(&self) -> Option<SocketAddr> {
        self.stream.as_ref()?.local_addr().ok()
    }

    /// Returns the stream, registered with the current thread if the connection has moved.
    pub(in crate::gateway) fn get(&mut self) -> io::Result<&mut TcpStream> {
        let thread = self.thread.load(Ordering::Relaxed);
        if thread != self.registered {
            self.registered = thread;
            let moved =
                self.stream.take().map(|stream| TcpStream::from_std(stream.into_std()?)).transpose()?;
            self.stream = moved;
        }
        self.stream.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for MovableStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(self.get()?).poll_read(context, buffer)
    }
}

impl AsyncWrite for MovableStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.get()?).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = Pin::new(self.get()?);
        if slices.iter().map(|slice| slice.len()).sum::<usize>() > MAX_JOINED {
            return stream.poll_write_vectored(context, slices);
        }
        let mut bytes = [const { MaybeUninit::uninit() }; MAX_JOINED];
        let mut joined = ReadBuf::uninit(&mut bytes);
        slices.iter().for_each(|slice| joined.put_slice(slice));
        stream.poll_write(context, joined.filled())
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get()?).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get()?).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
    use tokio::net::TcpListener;

    use super::super::ConnectionThreads;
    use super::super::balance::Move;
    use super::*;

    /// Answers each line with the name of the thread that has read it.
    async fn name_threads(stream: MovableStream) {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while stream.read_line(&mut line).await.is_ok_and(|count| count > 0) {
            let thread = std::thread::current();
            let answer = format!("{} {line}", thread.name().unwrap_or_default());
            stream.get_mut().write_all(answer.as_bytes()).await.unwrap();
            line.clear();
        }
    }

    async fn ask(client: &mut Lines<BufReader<TcpStream>>, question: &str) -> String {
        client.get_mut().get_mut().write_all(format!("{question}\n").as_bytes()).await.unwrap();
        client.next_line().await.unwrap().expect("the connection is open")
    }

    #[tokio::test]
    async fn connection_moves_between_its_answers() {
        let owner = ConnectionThreads::start(2).unwrap();
        let threads = owner.several().unwrap();
        let tasks = TaskTracker::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(connecting, listener.accept());
        let mut client = BufReader::new(client.unwrap()).lines();
        let place = ConnectionPlace::new(threads.clone());
        let stream = MovableStream::new(accepted.unwrap().0, Some(&place));
        place.spawn(tasks.clone(), name_threads(stream));
        let main = std::thread::current().name().unwrap_or_default().to_owned();
        let counts = || threads.all.iter().map(|thread| thread.connections.load(Ordering::Relaxed));

        assert_eq!(ask(&mut client, "first").await, format!("{main} first"));
        threads.request(&Move { from: MAIN, to: 1, connections: 1 });
        ask(&mut client, "moves after this").await;
        assert_eq!(ask(&mut client, "second").await, "connections second");
        assert_eq!(counts().collect::<Vec<_>>(), [0, 1]);
        threads.request(&Move { from: 1, to: MAIN, connections: 1 });
        ask(&mut client, "returns after this").await;
        assert_eq!(ask(&mut client, "third").await, format!("{main} third"));
        assert_eq!(counts().collect::<Vec<_>>(), [1, 0]);

        drop(client);
        tasks.close();
        tasks.wait().await;
        assert_eq!(counts().collect::<Vec<_>>(), [0, 0]);
    }
}
