//! The gateway's memory and open files over time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Looks at one process.
#[derive(Debug, Clone)]
pub struct Gauge {
    pid: u32,
    began: Instant,
    samples: Arc<Mutex<Vec<(f64, u64)>>>,
}

impl Gauge {
    /// A look at this process.
    pub fn new(pid: u32) -> Self {
        Self { pid, began: Instant::now(), samples: Arc::default() }
    }

    /// Notes the memory five times a second, for ever.
    pub async fn watch(self) {
        loop {
            let sample = (self.began.elapsed().as_secs_f64(), self.memory());
            self.samples.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Its memory now, in KiB.
    pub fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Its threads now.
    pub fn threads(&self) -> u64 {
        self.status("Threads:")
    }

    fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|count| count.parse().ok()).unwrap_or_default()
    }

    /// Its open files now.
    pub fn files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, Iterator::count)
    }

    /// Its CPU time so far, in clock ticks.
    pub fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
    }

    /// By how many KiB a minute its memory grew over the second half of the time.
    pub fn slope(&self) -> f64 {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let half = &samples[samples.len() / 2..];
        let count = half.len() as f64;
        let mean_time = half.iter().map(|(time, _)| time).sum::<f64>() / count;
        let mean_memory = half.iter().map(|(_, memory)| *memory as f64).sum::<f64>() / count;
        let above: f64 =
            half.iter().map(|(time, memory)| (time - mean_time) * (*memory as f64 - mean_memory)).sum();
        let below: f64 = half.iter().map(|(time, _)| (time - mean_time).powi(2)).sum();
        if below > 0.0 { 60.0 * above / below } else { 0.0 }
    }

    /// The most memory there ever was, in KiB.
    pub fn peak(&self) -> u64 {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.iter().map(|(_, memory)| *memory).max().unwrap_or_default()
    }
}
