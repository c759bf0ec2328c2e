//! `umf.comm`: the ranks of a job, messages between them, and collectives on buffers of numbers.

use std::time::Duration;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use umf::link::{Element, Error as LinkFailure, Memory, Operation, Reduction};

use crate::call::{
    Exclusive, Left, Part, builder, contiguous, duration, or_length, receive_bytes, wait, wanted,
};
use crate::errors::{argument, from_umf};

type Outcome<R> = Result<R, LinkFailure>;

struct State {
    communicator: umf::link::Communicator,
    timeout: Option<Duration>,
    /// The sender and the tag of the message that was received last.
    latest: Option<(usize, u64)>,
}

/// The links of this process, a rank of a job, with the other ranks. One thread uses it at a time.
///
/// All ranks call the same collectives in the same order. A collective that fails, times out or is
/// interrupted ends the collectives of the job; messages go on.
#[pyclass(module = "umf.comm", frozen, weakref)]
pub(crate) struct Communicator {
    state: Exclusive<State>,
    job: String,
    rank: usize,
    size: usize,
}

/// Joins a job as one of its `size` ranks. Does not wait for other ranks. `timeout` is that of
/// later calls, in seconds.
#[pyfunction]
#[pyo3(signature = (job, rank, size, *, timeout = None))]
pub(crate) fn join(
    python: Python<'_>,
    job: String,
    rank: usize,
    size: usize,
    timeout: Option<f64>,
) -> PyResult<Communicator> {
    let timeout = match duration(timeout)? {
        None => umf::link::link_settings().map_err(from_umf)?.timeout,
        timeout => timeout,
    };
    let builder = builder().map_err(from_umf)?;
    let communicator = wait(python, || builder.join(&job, rank, size))?;
    let state = State { communicator, timeout, latest: None };
    Ok(Communicator { state: Exclusive::new(state, "communicator"), job, rank, size })
}

/// Returns the type of the numbers of a buffer.
fn element(buffer: &PyUntypedBuffer) -> PyResult<Element> {
    let format = buffer.format().to_str().unwrap_or_default();
    let is_foreign = |order: char| order != if cfg!(target_endian = "little") { '<' } else { '>' };
    let (order, code) = match format.chars().next() {
        Some(order @ ('<' | '>' | '!')) => (Some(order), &format[1..]),
        Some('@' | '=') => (None, &format[1..]),
        _ => (None, format),
    };
    let size = buffer.item_size();
    let found = match (code, size) {
        ("b" | "h" | "i" | "l" | "q" | "n", 1) => Some(Element::I8),
        ("b" | "h" | "i" | "l" | "q" | "n", 2) => Some(Element::I16),
        ("b" | "h" | "i" | "l" | "q" | "n", 4) => Some(Element::I32),
        ("b" | "h" | "i" | "l" | "q" | "n", 8) => Some(Element::I64),
        ("B" | "H" | "I" | "L" | "Q" | "N", 1) => Some(Element::U8),
        ("B" | "H" | "I" | "L" | "Q" | "N", 2) => Some(Element::U16),
        ("B" | "H" | "I" | "L" | "Q" | "N", 4) => Some(Element::U32),
        ("B" | "H" | "I" | "L" | "Q" | "N", 8) => Some(Element::U64),
        ("f" | "d", 4) => Some(Element::F32),
        ("f" | "d", 8) => Some(Element::F64),
        _ => None,
    };
    found.filter(|element| element.size() == 1 || !order.is_some_and(is_foreign)).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "cannot combine numbers of format {format:?} and {size} bytes: ranks combine integers and floats of 8 to 64 \
             bits in the machine's byte order; convert them (astype)"
        ))
    })
}

fn operation(name: &str) -> PyResult<Operation> {
    Ok(match name {
        "sum" => Operation::Sum,
        "product" => Operation::Product,
        "min" => Operation::Min,
        "max" => Operation::Max,
        "and" => Operation::And,
        "or" => Operation::Or,
        "xor" => Operation::Xor,
        _ => {
            return Err(argument(
                "an operation is \"sum\", \"product\", \"min\", \"max\", \"and\", \"or\" or \"xor\"",
            ));
        }
    })
}

/// Returns the numbers of `array`, in `out` if that is given.
fn in_place<'py>(
    array: &Bound<'py, PyAny>,
    out: Option<Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyAny>, PyUntypedBuffer)> {
    let Some(out) = out else { return Ok((array.clone(), contiguous(array, true)?)) };
    let (from, to) = (contiguous(array, false)?, contiguous(&out, true)?);
    let is_same_order = from.is_c_contiguous() && to.is_c_contiguous()
        || from.is_fortran_contiguous() && to.is_fortran_contiguous();
    if from.format() != to.format() || from.shape() != to.shape() || !is_same_order {
        return Err(PyValueError::new_err(format!(
            "out has shape {:?} and format {:?}, the array {:?} and {:?}; pass an array of the same shape, format and \
             order (numpy.empty_like)",
            to.shape(),
            to.format(),
            from.shape(),
            from.format()
        )));
    }
    let length = to.len_bytes();
    if length > 0 {
        // SAFETY: both are contiguous and have that many bytes. They may be the same memory.
        unsafe { std::ptr::copy(from.buf_ptr().cast::<u8>(), to.buf_ptr().cast::<u8>(), length) };
    }
    Ok((out, to))
}

impl Communicator {
    /// Runs a call that may wait.
    fn call<R: Send>(
        &self,
        python: Python<'_>,
        timeout: Option<f64>,
        run: impl FnOnce(&mut State) -> Outcome<R> + Send,
    ) -> PyResult<R> {
        let timeout = duration(timeout)?;
        self.state.with(|state| {
            state.communicator.set_timeout(timeout.or(state.timeout));
            wait(python, || run(state))
        })
    }

    /// Runs a collective on a buffer.
    fn collective(
        &self,
        python: Python<'_>,
        timeout: Option<f64>,
        buffer: &PyUntypedBuffer,
        run: impl FnOnce(&mut umf::link::Communicator, &Part, Option<&Memory<'_>>) -> Outcome<()> + Send,
    ) -> PyResult<()> {
        let part = Part::new(python, buffer);
        self.call(python, timeout, |state| {
            let memory = part.memory();
            run(&mut state.communicator, &part, memory.as_ref())
        })
    }

    fn combined<'py>(
        &self,
        (array, out): (&Bound<'py, PyAny>, Option<Bound<'py, PyAny>>),
        op: &str,
        timeout: Option<f64>,
        run: impl FnOnce(&mut umf::link::Communicator, umf::link::Destination<'_>, Reduction) -> Outcome<()>
        + Send,
    ) -> PyResult<Bound<'py, PyAny>> {
        let operation = operation(op)?;
        let (result, buffer) = in_place(array, out)?;
        let reduction = Reduction::new(operation, element(&buffer)?);
        let reduction = reduction.map_err(|error| from_umf(error.into()))?;
        self.collective(array.py(), timeout, &buffer, |communicator, part, memory| {
            run(communicator, part.destination(memory)?, reduction)
        })?;
        Ok(result)
    }
}

#[pymethods]
impl Communicator {
    /// The name of the job.
    #[getter]
    fn job(&self) -> &str {
        &self.job
    }

    /// The number of this rank.
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// The time in seconds after which calls fail with `umf.TimeoutError`; None until a rank ends.
    #[getter]
    fn get_timeout(&self) -> PyResult<Option<f64>> {
        self.state.with(|state| Ok(state.timeout.map(|timeout| timeout.as_secs_f64())))
    }

    #[setter]
    fn set_timeout(&self, timeout: Option<f64>) -> PyResult<()> {
        let timeout = duration(timeout)?;
        self.state.with(|state| {
            state.timeout = timeout;
            Ok(())
        })
    }

    /// The rank that sent the message that was received last.
    #[getter]
    fn latest_source(&self) -> PyResult<Option<usize>> {
        self.state.with(|state| Ok(state.latest.map(|(source, _)| source)))
    }

    /// The tag of the message that was received last.
    #[getter]
    fn latest_tag(&self) -> PyResult<Option<u64>> {
        self.state.with(|state| Ok(state.latest.map(|(_, tag)| tag)))
    }

    /// Waits until all ranks have called it.
    #[pyo3(signature = (*, timeout = None))]
    fn barrier(&self, python: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.call(python, timeout, |state| state.communicator.barrier())
    }

    /// Copies the buffer of the rank `root` to those of all ranks, which have the same length.
    /// Returns the buffer.
    #[pyo3(signature = (array, root = 0, *, timeout = None))]
    fn bcast<'py>(
        &self,
        array: Bound<'py, PyAny>,
        root: usize,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // The root's memory is read only.
        let buffer = contiguous(&array, root != self.rank)?;
        self.collective(array.py(), timeout, &buffer, |communicator, part, memory| {
            communicator.bcast(root, part.destination(memory)?)
        })?;
        Ok(array)
    }

    /// Combines the arrays of all ranks, number by number, in place or in `out`. All ranks get the
    /// same result, bit for bit. Returns the array that has it.
    #[pyo3(signature = (array, op = "sum", *, out = None, timeout = None))]
    fn allreduce<'py>(
        &self,
        array: Bound<'py, PyAny>,
        op: &str,
        out: Option<Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.combined((&array, out), op, timeout, |communicator, memory, reduction| {
            communicator.allreduce(memory, reduction)
        })
    }

    /// Combines the arrays of all ranks, number by number, in the array of the rank `root` or in
    /// its `out`. The result of other ranks is their own array. Returns the array that has it.
    #[pyo3(signature = (array, op = "sum", root = 0, *, out = None, timeout = None))]
    fn reduce<'py>(
        &self,
        array: Bound<'py, PyAny>,
        op: &str,
        root: usize,
        out: Option<Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.combined((&array, out), op, timeout, |communicator, memory, reduction| {
            communicator.reduce(root, memory, reduction)
        })
    }

    /// Combines the arrays of all ranks, and writes to each rank its share of the result: see
    /// `share`. The rest of the array stays as it was. Returns the array that has it.
    #[pyo3(signature = (array, op = "sum", *, out = None, timeout = None))]
    fn reduce_scatter<'py>(
        &self,
        array: Bound<'py, PyAny>,
        op: &str,
        out: Option<Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.combined((&array, out), op, timeout, |communicator, memory, reduction| {
            communicator.reduce_scatter(memory, reduction)
        })
    }

    /// Copies each rank's share of the bytes of its buffer (see `share`) to all ranks. All ranks
    /// pass buffers of the same length. Returns the buffer.
    #[pyo3(signature = (array, *, timeout = None))]
    fn allgather<'py>(&self, array: Bound<'py, PyAny>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let buffer = contiguous(&array, true)?;
        self.collective(array.py(), timeout, &buffer, |communicator, part, memory| {
            communicator.allgather(part.destination(memory)?)
        })?;
        Ok(array)
    }

    /// Sends block `i` of `array` to rank `i`, and receives block `i` of `out` from it. Both have
    /// the same length, a multiple of the number of ranks. Returns `out`.
    #[pyo3(signature = (array, out, *, timeout = None))]
    fn alltoall<'py>(
        &self,
        array: Bound<'py, PyAny>,
        out: Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let python = array.py();
        let (from, to) = (contiguous(&array, false)?, contiguous(&out, true)?);
        let outgoing = Part::new(python, &from);
        self.collective(python, timeout, &to, |communicator, incoming, memory| {
            let outgoing_memory = outgoing.memory();
            let source = outgoing.source(outgoing_memory.as_ref())?;
            communicator.alltoall(source, incoming.destination(memory)?)
        })?;
        Ok(out)
    }

    /// Returns the slice of `count` elements that a rank (default: this one) has in
    /// `reduce_scatter`, and of `count` bytes in `allgather`, as `(start, stop)`.
    #[pyo3(signature = (count, rank = None))]
    fn share(&self, count: usize, rank: Option<usize>) -> PyResult<(usize, usize)> {
        let rank = rank.unwrap_or(self.rank);
        if rank >= self.size {
            return Err(argument("there is no rank of that number"));
        }
        self.state.with(|state| {
            let share = state.communicator.share(count, rank);
            Ok((share.start, share.end))
        })
    }

    /// Sends the bytes of a buffer to a rank.
    #[pyo3(signature = (data, to, *, tag = 0, timeout = None))]
    fn send(
        &self,
        python: Python<'_>,
        data: &Bound<'_, PyAny>,
        to: usize,
        tag: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let buffer = contiguous(data, false)?;
        self.collective(python, timeout, &buffer, |communicator, part, memory| {
            communicator.send(to, tag, part.source(memory)?)
        })
    }

    /// Receives a message from a rank, or from any (`source=None`), with a tag, or with any.
    /// Returns its bytes; or with `into` writes them to that buffer, and returns their number.
    #[pyo3(signature = (source = None, into = None, *, tag = None, timeout = None))]
    fn recv<'py>(
        &self,
        python: Python<'py>,
        source: Option<usize>,
        into: Option<Bound<'py, PyAny>>,
        tag: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let receive = |state: &mut State, part: &Part, memory: Option<&Memory<'_>>| {
            let (communicator, into) = (&mut state.communicator, part.destination(memory)?);
            let received = match source {
                Some(source) => communicator.recv(source, wanted(tag), into),
                None => communicator.recv_any(wanted(tag), into),
            }?;
            state.latest = Some((received.from, received.tag));
            Ok(received.length)
        };
        if let Some(into) = into {
            let buffer = contiguous(&into, true)?;
            let part = Part::new(python, &buffer);
            let length = self.call(python, timeout, |state| {
                let memory = part.memory();
                receive(state, &part, memory.as_ref())
            })?;
            return Ok(length.into_pyobject(python)?.into_any());
        }
        let mut left = Left::new(timeout);
        let bytes = receive_bytes(python, |part| {
            self.call(python, left.seconds(), |state| or_length(receive(state, part, None)))
        });
        Ok(bytes?.into_any())
    }

    /// Returns `(source, tag, length)` of the message that `recv` would take, or None. Does not
    /// wait.
    #[pyo3(signature = (source = None, *, tag = None))]
    fn probe(
        &self,
        python: Python<'_>,
        source: Option<usize>,
        tag: Option<u64>,
    ) -> PyResult<Option<(usize, u64, usize)>> {
        self.call(python, None, |state| {
            let probed = state.communicator.probe(source, wanted(tag))?;
            Ok(probed.map(|probed| (probed.from, probed.tag, probed.length)))
        })
    }

    /// Forgets a rank that ended, so that the next message goes to the process that takes its
    /// place.
    fn forget(&self, python: Python<'_>, rank: usize) -> PyResult<()> {
        self.call(python, None, |state| state.communicator.forget(rank))
    }

    /// Leaves the job. Does nothing the second time.
    fn close(&self, python: Python<'_>) -> PyResult<()> {
        let state = self.state.lock()?.take();
        python.detach(|| drop(state));
        Ok(())
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.state.is_closed()
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        python: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(python)
    }

    fn __repr__(&self) -> String {
        let state = if self.state.is_closed() { ", closed" } else { "" };
        format!("<umf.comm.Communicator: rank {} of {} of job {:?}{state}>", self.rank, self.size, self.job)
    }
}
