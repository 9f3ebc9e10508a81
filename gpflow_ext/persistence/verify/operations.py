"""The operations that a function of an exported model may hold: they compute, and touch nothing else."""

from __future__ import annotations

_NUMERICAL = """
Abs Acos Acosh Add AddN AddV2 All Any ArgMax ArgMin Asin Asinh Atan Atan2 Atanh BatchMatMul BatchMatMulV2
BatchMatMulV3 BesselI0e BesselI1e Betainc BiasAdd Bincount Bitcast BitwiseAnd BitwiseOr BitwiseXor
BroadcastArgs BroadcastTo Bucketize Cast
Ceil CheckNumerics Cholesky ClipByValue Complex Concat ConcatV2 Conj Conv2D Cos Cosh Cross Cumprod Cumsum
CumulativeLogsumexp DepthToSpace Diag DiagPart Digamma Div DivNoNan DynamicPartition DynamicStitch Einsum
Elu Equal Erf Erfc Erfinv Exp ExpandDims Expm1 ExtractImagePatches Fill Floor FloorDiv FloorMod Gather
GatherNd GatherV2 Greater GreaterEqual Identity IdentityN Igamma Igammac Imag InTopKV2 InvertPermutation
IsFinite IsInf IsNan LeakyRelu LeftShift
Less LessEqual Lgamma LinSpace Log Log1p LogMatrixDeterminant LogSoftmax LogicalAnd LogicalNot
LogicalOr LowerBound MatMul MatrixBandPart MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV2
MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixInverse MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3
MatrixSolve MatrixSolveLs MatrixTriangularSolve Max Maximum Mean Min Minimum MirrorPad Mod Mul MulNoNan
Ndtri Neg NextAfter NotEqual OneHot OnesLike Pack Pad PadV2 ParallelConcat ParallelDynamicStitch Polygamma
Pow PreventGradient Prod Qr Range Rank Real RealDiv Reciprocal Relu Relu6 Reshape Reverse ReverseV2
RightShift Rint
Roll Round Rsqrt ScatterNd SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum Select SelectV2
SelfAdjointEigV2 Selu Shape ShapeN Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign Split SplitV
Sqrt Square SquaredDifference Squeeze StopGradient StridedSlice Sub Sum Svd Tan Tanh TensorScatterAdd
TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate Tile TopKV2 Transpose
TridiagonalMatMul TridiagonalSolve TruncateDiv TruncateMod Unique UniqueV2 Unpack UnsortedSegmentMax
UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound Where Xdivy Xlog1py Xlogy ZerosLike
Zeta
"""
_RANDOM = """
Multinomial RandomGammaGrad RandomStandardNormal RandomUniform RandomUniformInt StatelessMultinomial
StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetAlg StatelessRandomGetKeyCounter
StatelessRandomGetKeyCounterAlg StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomPoisson
StatelessRandomUniform
StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
StatelessRandomUniformIntV2 StatelessRandomUniformV2
"""
_CONTROL = """
Assert BroadcastGradientArgs Case Const EmptyTensorList EnsureShape If NoOp PartitionedCall
StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile TensorListConcatV2 TensorListElementShape
TensorListFromTensor TensorListGather TensorListGetItem TensorListLength TensorListPopBack
TensorListPushBack TensorListReserve TensorListResize TensorListSetItem TensorListSplit TensorListStack
While
"""
_VARIABLES = "ReadVariableOp ResourceGather ResourceGatherNd VariableShape"  # they are read, never written
# Of messages of Assert; of cells of raw rows, stripped, matched with constant patterns, read as numbers.
_STRINGS = "StringFormat StringStrip StaticRegexFullMatch StaticRegexReplace StringToNumber"

PURE = frozenset(" ".join((_NUMERICAL, _RANDOM, _CONTROL, _VARIABLES, _STRINGS)).split())
