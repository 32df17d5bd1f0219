"""Every loss as a Criterion: `MatchedPredictions` in, a dict of named losses out."""

from paploss.criteria.alrp import ALRPCriterion
from paploss.criteria.average_precision import AveragePrecisionCriterion
from paploss.criteria.criterion import Criterion
from paploss.criteria.cross_entropy import CrossEntropyCriterion
from paploss.criteria.cse_autoloss import CSEAutoLossACriterion
from paploss.criteria.focal import FocalCriterion
from paploss.criteria.heads import Criteria
from paploss.criteria.matched import MatchedPredictions
from paploss.criteria.pap import ParameterizedAPCriterion
from paploss.criteria.rank_sort import RankSortCriterion
from paploss.criteria.registry import CRITERIA, build_criteria, build_criterion

__all__ = [
    "CRITERIA",
    "ALRPCriterion",
    "AveragePrecisionCriterion",
    "CSEAutoLossACriterion",
    "Criteria",
    "Criterion",
    "CrossEntropyCriterion",
    "FocalCriterion",
    "MatchedPredictions",
    "ParameterizedAPCriterion",
    "RankSortCriterion",
    "build_criteria",
    "build_criterion",
]
