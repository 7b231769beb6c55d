//! Decides which connections move to which thread. No I/O, no clock.

use std::time::Duration;

use super::MAIN;

/// A thread on which tasks wait this long is busy. With 64 callers they wait half as long on one thread, with 256 longer.
const BUSY_DELAY: Duration = Duration::from_millis(1);
/// If all threads together work less than this share of the time, one is enough. Delays would not tell: on two threads tasks
/// hardly wait under a load that makes them wait on one.
const CALM_SHARE: f64 = 0.5;
/// Connections move to another thread only if at least this many processors are idle. Otherwise that thread would take its time
/// from the servers and from the thread they are on, and calls cost more on it.
const MIN_IDLE_CPUS: f64 = 0.5;
/// Number of measurements that count, by their median. A single one may have waited for a reload, or for another program.
pub(super) const SAMPLES: usize = 5;

/// The last measurements of a thread.
#[derive(Debug, Default)]
pub(super) struct ThreadLoad {
    /// Oldest first; at most `SAMPLES`.
    samples: Vec<Sample>,
    /// The time for which the thread had worked at the last measurement.
    worked: Duration,
    connections: usize,
}

/// One measurement of a thread.
#[derive(Debug)]
pub(super) struct Measurement {
    /// How long a task waited for its turn.
    pub(super) delay: Duration,
    /// The time for which the thread has worked since its start.
    pub(super) worked: Duration,
    pub(super) connections: usize,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    delay: Duration,
    /// The share of the time in which the thread worked.
    busy: f64,
}

/// Connections that have to move.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) connections: usize,
}

impl ThreadLoad {
    /// Adds a measurement that was made `elapsed` after the last one.
    pub(super) fn record(&mut self, measured: &Measurement, elapsed: Duration) {
        let worked = measured.worked.saturating_sub(self.worked);
        if self.samples.len() == SAMPLES {
            self.samples.remove(0);
        }
        self.samples.push(Sample { delay: measured.delay, busy: worked.div_duration_f64(elapsed) });
        self.worked = measured.worked;
        self.connections = measured.connections;
    }

    /// Forgets the measurements from before a change.
    pub(super) fn forget_samples(&mut self) {
        self.samples.clear();
    }

    /// Returns the usual delay, or `None` while there are too few measurements.
    fn usual_delay(&self) -> Option<Duration> {
        let samples = <[Sample; SAMPLES]>::try_from(self.samples.as_slice()).ok()?;
        let mut delays = samples.map(|sample| sample.delay);
        delays.sort_unstable();
        Some(delays[SAMPLES / 2])
    }

    /// Returns the mean share of the time in which the thread worked, or `None` while there are too few measurements.
    fn busy_share(&self) -> Option<f64> {
        let samples = <[Sample; SAMPLES]>::try_from(self.samples.as_slice()).ok()?;
        Some(samples.map(|sample| sample.busy).iter().sum::<f64>() / SAMPLES as f64)
    }

    fn is_busy(&self) -> bool {
        self.usual_delay().is_some_and(|delay| delay >= BUSY_DELAY)
    }
}

/// Returns the thread for new connections: the first that is not busy, or the least busy; the main thread if no processor is idle.
pub(super) fn pick_thread(loads: &[ThreadLoad], idle_cpus: Option<f64>) -> usize {
    if !has_idle_cpu(idle_cpus) {
        return MAIN;
    }
    let idle = loads.iter().position(|load| !load.is_busy());
    idle.or_else(|| least_delayed(loads)).unwrap_or(MAIN)
}

/// Returns whether another thread would have a processor of its own. Where the number of idle processors is not known, it has.
fn has_idle_cpu(idle_cpus: Option<f64>) -> bool {
    idle_cpus.is_none_or(|idle| idle >= MIN_IDLE_CPUS)
}

fn least_delayed(loads: &[ThreadLoad]) -> Option<usize> {
    (0..loads.len()).min_by_key(|thread| loads[*thread].usual_delay())
}

/// Returns what has to move: up to a quarter of the connections of the busiest thread to one with half its delay, because calls cost
/// least on the thread of the servers; or, if one thread is enough, the connections of the last thread in use to the main one.
pub(super) fn plan_move(loads: &[ThreadLoad], idle_cpus: Option<f64>) -> Option<Move> {
    let from = (0..loads.len()).max_by_key(|thread| loads[*thread].usual_delay())?;
    if loads[from].is_busy() {
        if !has_idle_cpu(idle_cpus) {
            return None;
        }
        let to = least_delayed(loads)?;
        let long = loads[from].usual_delay()?.as_micros();
        let short = loads[to].usual_delay()?.as_micros();
        let surplus = loads[from].connections as u128 * (long - short) / (4 * long);
        let connections = usize::try_from(surplus).unwrap_or(usize::MAX);
        return (short * 2 <= long && connections > 0).then_some(Move { from, to, connections });
    }
    if loads.iter().map(ThreadLoad::busy_share).sum::<Option<f64>>()? >= CALM_SHARE {
        return None;
    }
    let from = loads.iter().rposition(|load| load.connections > 0).filter(|last| *last != MAIN)?;
    Some(Move { from, to: MAIN, connections: loads[from].connections })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Adds a measurement after a second in which the thread worked for a part of the time.
    fn record(load: &mut ThreadLoad, delay_micros: u64, busy: f64, connections: usize) {
        let delay = Duration::from_micros(delay_micros);
        let worked = load.worked + SECOND.mul_f64(busy);
        load.record(&Measurement { delay, worked, connections }, SECOND);
    }

    fn load_of(delay_micros: u64, busy: f64, connections: usize) -> ThreadLoad {
        let mut load = ThreadLoad::default();
        (0..SAMPLES).for_each(|_| record(&mut load, delay_micros, busy, connections));
        load
    }

    fn working_load(busy: f64, connections: usize) -> ThreadLoad {
        load_of(100, busy, connections)
    }

    fn load(delay_micros: u64, connections: usize) -> ThreadLoad {
        load_of(delay_micros, 0.9, connections)
    }

    #[test]
    fn connections_stay_together_until_tasks_wait() {
        assert_eq!(plan_move(&[load(900, 60), load(20, 0)], None), None);
        let expected = Move { from: 0, to: 1, connections: 24 };
        assert_eq!(plan_move(&[load(2_500, 100), load(20, 0)], None), Some(expected), "a quarter of them");
        assert_eq!(plan_move(&[load(2_500, 50), load(1_500, 50)], None), None, "moving would not help");
        assert_eq!(plan_move(&[load(9_000, 3), load(20, 0)], None), None, "too few to divide");
    }

    #[test]
    fn connections_stay_together_while_no_processor_is_idle() {
        let busy = [load(2_500, 100), load(20, 0)];
        assert_eq!(plan_move(&busy, Some(0.4)), None);
        assert!(plan_move(&busy, Some(0.6)).is_some());
        assert_eq!(pick_thread(&busy, Some(0.4)), MAIN);
        assert_eq!(pick_thread(&busy, Some(0.6)), 1);
        let quiet = [working_load(0.1, 10), working_load(0.1, 4)];
        assert!(plan_move(&quiet, Some(0.0)).is_some(), "they return in any case");
    }

    #[test]
    fn one_long_delay_moves_nothing() {
        let mut main = load(100, 100);
        record(&mut main, 50_000, 0.9, 100);
        assert_eq!(plan_move(&[main, load(20, 0)], None), None);
        let mut unknown = ThreadLoad::default();
        record(&mut unknown, 50_000, 0.9, 100);
        assert_eq!(plan_move(&[unknown, load(20, 0)], None), None, "too few measurements");
    }

    #[test]
    fn connections_return_when_one_thread_is_enough() {
        assert_eq!(plan_move(&[working_load(0.3, 10), working_load(0.3, 10)], None), None);
        let expected = Move { from: 2, to: MAIN, connections: 4 };
        let quiet = [working_load(0.1, 10), working_load(0.1, 10), working_load(0.1, 4)];
        assert_eq!(plan_move(&quiet, None), Some(expected));
        assert_eq!(
            plan_move(&[working_load(0.1, 10), working_load(0.0, 0)], None),
            None,
            "they are all there"
        );
    }

    #[test]
    fn new_connections_go_to_the_first_thread_that_is_not_busy() {
        assert_eq!(pick_thread(&[ThreadLoad::default(), ThreadLoad::default()], None), MAIN);
        assert_eq!(pick_thread(&[load(900, 9), load(20, 0)], None), MAIN);
        assert_eq!(pick_thread(&[load(3_000, 9), load(900, 9), load(20, 0)], None), 1);
        assert_eq!(pick_thread(&[load(4_000, 9), load(3_000, 9)], None), 1, "the least busy");
    }
}
