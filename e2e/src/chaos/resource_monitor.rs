//! The gateway's memory, open files and threads over time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use toolcrib::util::locks::IgnorePoison as _;

/// Reads the resource usage of one process from `/proc`.
#[derive(Debug, Clone)]
pub struct ResourceMonitor {
    pid: u32,
    started: Instant,
    samples: Arc<Mutex<Vec<MemorySample>>>,
}

/// Memory at one moment.
#[derive(Debug, Clone, Copy)]
struct MemorySample {
    seconds: f64,
    kib: u64,
}

impl ResourceMonitor {
    /// Creates a monitor of this process.
    pub fn new(pid: u32) -> Self {
        Self { pid, started: Instant::now(), samples: Arc::default() }
    }

    /// Samples the memory five times a second until it is dropped.
    pub async fn sample(self) {
        loop {
            let sample =
                MemorySample { seconds: self.started.elapsed().as_secs_f64(), kib: self.memory_kib() };
            self.samples.lock().ignore_poison().push(sample);
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Returns the resident memory in KiB.
    pub fn memory_kib(&self) -> u64 {
        self.status_field("VmRSS:")
    }

    /// Returns the resident memory that is not mapped from a file, in KiB. The gateway drops code that it no longer runs and loads it again, so
    /// that the rest of the resident memory goes up and down.
    pub fn anonymous_kib(&self) -> u64 {
        self.status_field("RssAnon:") + self.status_field("RssShmem:")
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> u64 {
        self.status_field("Threads:")
    }

    fn status_field(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|count| count.parse().ok()).unwrap_or_default()
    }

    /// Returns the number of open files.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, Iterator::count)
    }

    /// Returns the CPU time in clock ticks.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
    }

    /// Returns the growth of memory over the second half of the samples, in KiB per minute.
    pub fn growth_per_minute(&self) -> f64 {
        let samples = self.samples.lock().ignore_poison();
        let half = &samples[samples.len() / 2..];
        let count = half.len() as f64;
        let mean_seconds = half.iter().map(|sample| sample.seconds).sum::<f64>() / count;
        let mean_kib = half.iter().map(|sample| sample.kib as f64).sum::<f64>() / count;
        let covariance: f64 =
            half.iter().map(|sample| (sample.seconds - mean_seconds) * (sample.kib as f64 - mean_kib)).sum();
        let variance: f64 = half.iter().map(|sample| (sample.seconds - mean_seconds).powi(2)).sum();
        if variance > 0.0 { 60.0 * covariance / variance } else { 0.0 }
    }

    /// Returns the largest sample in KiB.
    pub fn peak_kib(&self) -> u64 {
        let samples = self.samples.lock().ignore_poison();
        samples.iter().map(|sample| sample.kib).max().unwrap_or_default()
    }
}
