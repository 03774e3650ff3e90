"""Measured peaks and the waves they were measured on: each wave priced with the report's table."""

from dataclasses import dataclass
from pathlib import Path

from routing.audit.peaks import PeakFacts, RankBytes
from routing.core.errors import InputError
from routing.core.peak import MeasuredPeak
from routing.core.wave import Wave
from routing.stages.estimator import Estimator
from routing.store.peaks import read_peaks
from routing.store.waves import read_waves


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakFiles:
    """`--peaks` and `--waves`."""

    peaks: Path
    waves: Path


def peak_facts(files: PeakFiles, *, allowances: Path) -> tuple[PeakFacts, ...]:
    """A fact for each measured peak, in the file's order.

    InputError for a wave that isn't there, a state that its wave contradicts, a wave of another model than the table's.
    """
    waves = read_waves(files.waves)
    return tuple(
        _priced(peak, _wave_of(peak, waves, files, line), allowances, files.waves)
        for line, peak in enumerate(read_peaks(files.peaks), start=2)
    )


def _wave_of(peak: MeasuredPeak, waves: dict[str, Wave], files: PeakFiles, line: int) -> Wave:
    where = f"{files.peaks}:{line}"
    wave = waves.get(peak.wave)
    if wave is None:
        raise InputError(f"{where}: wave {peak.wave[:80]!r} is not in {files.waves} ({', '.join(waves)[:200]})")
    if wave.first_gradient_execution != (peak.state == "cold"):
        said = str(wave.first_gradient_execution).lower()
        raise InputError(f"{where}: {peak.state}, and its wave says first_gradient_execution: {said}; only one can be so")
    return wave


def _priced(peak: MeasuredPeak, wave: Wave, allowances: Path, waves_path: Path) -> PeakFacts:
    try:
        estimator = Estimator.load(allowances, model=wave.model)
        found, ranks = estimator.price(wave), estimator.terms_by_rank(wave)
    except InputError as error:
        raise InputError(f"{waves_path}: {peak.wave[:80]}: {error}") from error
    return PeakFacts(
        peak=peak,
        ep=wave.topology.ep,
        cp=wave.topology.cp,
        allowance=found.allowance.value,
        status=found.allowance.status,
        binding_rank=found.binding_rank,
        estimate_bytes=found.total_bytes,
        hybridep_bytes=found.hybridep_bytes,
        ranks=tuple(
            RankBytes(rank=terms[0].rank, terms=tuple((one.name, one.bytes) for one in terms)) for terms in ranks if terms
        ),
        warnings=tuple(caution.code for caution in found.cautions),
    )
