//! Usage of limits as commands of the server, and their replies.

use std::time::Duration;

use bytes::Bytes;
use toolcrib::store::{
    Admission, CounterList, CounterUsage, LimitCounter, LimitKind, LimitRefusal, ReservationToken, StoreError,
};

use crate::command::{Keys, StoreCommand, StoreScript, USAGE_SLOT};
use crate::resp::Reply;

/// The values that describe one counter to the script.
const COUNTER_VALUES: usize = 4;

/// Creates an operation on the usage of a caller.
pub(crate) fn command(
    keys: &Keys,
    operation: &'static str,
    caller: &str,
    counters: &CounterList<'_>,
    last_arguments: Vec<Bytes>,
) -> StoreCommand {
    let mut arguments = vec![Bytes::from_static(operation.as_bytes()), Bytes::from(caller.to_owned())];
    let count = counters.iter().count();
    arguments.reserve(1 + count * COUNTER_VALUES + last_arguments.len());
    arguments.push(count.to_string().into());
    for counter in counters.iter() {
        let LimitCounter { name, ordinal, kind } = counter;
        arguments.push(format!("{ordinal}:{name}").into());
        arguments.push(kind.calls().to_string().into());
        arguments.push(format_time(kind.period().max(Duration::from_micros(1))));
        arguments.push(match kind {
            LimitKind::Rate { max_wait, .. } => format_time(*max_wait),
            _ => Bytes::new(),
        });
    }
    arguments.extend(last_arguments);
    StoreCommand::script(StoreScript::Usage, USAGE_SLOT, vec![keys.usage(caller), keys.callers()], arguments)
}

/// Creates the reservation of up to `wanted` calls, the first of which may have to wait.
pub(crate) fn reserve(
    keys: &Keys,
    caller: &str,
    counters: &CounterList<'_>,
    max_wait: Option<Duration>,
    wanted: u32,
) -> StoreCommand {
    let max_wait = max_wait.map_or_else(Bytes::new, format_time);
    command(keys, "reserve", caller, counters, vec![max_wait, wanted.to_string().into()])
}

/// Creates the release of `calls` that were reserved together.
pub(crate) fn release(
    keys: &Keys,
    caller: &str,
    counters: &CounterList<'_>,
    token: ReservationToken,
    calls: u32,
) -> StoreCommand {
    let last_arguments = vec![token.0.to_string().into(), calls.to_string().into()];
    command(keys, "release", caller, counters, last_arguments)
}

/// The reply to a reservation.
#[derive(Debug)]
pub(crate) struct Reserved {
    pub(crate) admission: Admission,
    /// The number of calls that were counted.
    pub(crate) calls: u32,
}

/// Parses the reply to a reservation of these counters.
pub(crate) fn parse_reserved(reply: &Reply, counters: &[LimitCounter]) -> Result<Reserved, StoreError> {
    let members = match reply {
        Reply::Array(members) if members.len() == 3 => members,
        _ => return Err(unexpected_reply()),
    };
    let calls = u32::try_from(parse_number(&members[0])?).map_err(|_| unexpected_reply())?;
    let time = Duration::from_micros(parse_number(&members[2])?);
    let number = parse_number(&members[1])?;
    let admission = if calls == 0 {
        let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        let counter = index.and_then(|index| counters.get(index)).ok_or_else(unexpected_reply)?;
        Admission::Refused(LimitRefusal { counter: counter.clone(), wait: time })
    } else {
        Admission::Admitted { delay: time, token: ReservationToken(number) }
    };
    Ok(Reserved { admission, calls })
}

/// Parses the usage of each counter.
pub(crate) fn parse_usage(reply: Reply) -> Result<Vec<CounterUsage>, StoreError> {
    let Reply::Array(members) = reply else { return Err(unexpected_reply()) };
    let parse = |pair: &[Reply]| {
        let used = u32::try_from(parse_number(&pair[0])?).unwrap_or(u32::MAX);
        Ok(CounterUsage { used, wait: Duration::from_micros(parse_number(&pair[1])?) })
    };
    members.chunks_exact(2).map(parse).collect()
}

fn parse_number(value: &Reply) -> Result<u64, StoreError> {
    let number = match value {
        Reply::Integer(number) => u64::try_from(*number).ok(),
        Reply::Text(text) => std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()),
        _ => None,
    };
    number.ok_or_else(unexpected_reply)
}

/// Returns the error for a reply that the script never returns.
pub(crate) fn unexpected_reply() -> StoreError {
    StoreError::new("the store replied with something unexpected")
}

/// Formats a time in microseconds, rounded up.
fn format_time(time: Duration) -> Bytes {
    time.as_nanos().div_ceil(1000).to_string().into()
}
