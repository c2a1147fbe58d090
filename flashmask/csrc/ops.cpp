// SPDX-License-Identifier: Apache-2.0
// Copyright the paddle-on-torch authors
//
// The border between torch and the kernels: checks, results, pointers. Schemas, fakes and gradients are registered in
// Python (ops.py).

#include <Python.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "check.h"
#include "driver.h"
#include "memory.h"
#include "stable_abi.h"

namespace flashmask {
namespace {

using check::MaybeTensor;

Workers torch_workers() {
  const int count = static_cast<int>(get_num_threads());
  return {count, [count](const std::function<void(int)>& worker) {
            parallel_for(0, count, 1, [&worker](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) worker(static_cast<int>(i));
            });
          }};
}

DType dtype_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Float: return DType::kFloat32;
    case ScalarType::BFloat16: return DType::kBFloat16;
    default: return DType::kFloat16;
  }
}

// The tensor itself, or a copy when its last dimension is strided. Other strides are the kernels' business.
Tensor dense_rows(const Tensor& t) { return t.size(3) <= 1 || t.stride(3) == 1 ? t : torch::stable::contiguous(t); }

View view_of(const Tensor& t) {
  return {static_cast<const char*>(t.const_data_ptr()), t.stride(0), t.stride(1), t.stride(2)};
}

MaskSource mask_source(const MaybeTensor& bounds, bool causal) {
  MaskSource m;
  m.causal = causal;
  if (!bounds) return m;
  m.data = bounds->const_data_ptr<int32_t>();
  m.stride_b = bounds->stride(0), m.stride_h = bounds->stride(1);
  m.stride_s = bounds->stride(2), m.stride_c = bounds->stride(3);
  m.batch = bounds->size(0), m.heads = bounds->size(1);
  m.columns = static_cast<int>(bounds->size(3));
  return m;
}

BlockMask block_mask_of(const MaybeTensor& t) {
  BlockMask m;
  if (!t) return m;
  m.data = t->const_data_ptr<int32_t>();
  m.stride_b = t->size(0) == 1 ? 0 : t->stride(0), m.stride_h = t->stride(1);
  m.stride_r = t->stride(2), m.stride_c = t->stride(3);
  m.heads = t->size(1);
  return m;
}

// Plans of all mask heads, each a task of its own.
void fill_plan(const MaybeTensor& bounds, const MaybeTensor& block_mask, int64_t seqlen_q, int64_t seqlen_k,
               bool causal, const check::PlanShape& shape, int32_t* plan) {
  const MaskSource source = mask_source(bounds, causal);
  const BlockMask blocks = block_mask_of(block_mask);
  const int64_t batch = shape.size[0], heads = shape.size[1], length = shape.size[2];
  const auto build = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      build_plan(source, blocks, batch, heads, i / heads, i % heads, seqlen_q, seqlen_k, plan + i * length);
  };
  if (batch * heads == 1) {
    build(0, 1);
  } else {
    // Some thousand columns are worth waking a thread for.
    parallel_for(0, batch * heads, std::max<int64_t>(1, 8192 / (seqlen_k + 1)), build);
  }
}

Tensor plan(const MaybeTensor& bounds, const MaybeTensor& block_mask, int64_t seqlen_q, int64_t seqlen_k, bool causal) {
  check::plan_arguments(bounds, block_mask, seqlen_q, seqlen_k, causal);
  const check::PlanShape shape = check::plan_shape(bounds, block_mask, seqlen_q, seqlen_k);
  Tensor result = torch::stable::empty({shape.size, 3}, ScalarType::Int);
  fill_plan(bounds, block_mask, seqlen_q, seqlen_k, causal, shape, result.mutable_data_ptr<int32_t>());
  return result;
}

// The plan of a call: the one that was passed, or one made for this call alone.
class CallPlan {
 public:
  CallPlan(const MaybeTensor& given, const MaybeTensor& bounds, const MaybeTensor& block_mask, int64_t seqlen_q,
           int64_t seqlen_k, bool causal) {
    if (given) {
      tensor_ = given->is_contiguous() ? *given : torch::stable::contiguous(*given);
      data = tensor_->const_data_ptr<int32_t>();
      batch = tensor_->size(0), heads = tensor_->size(1);
      for (int64_t i = 0; i < batch * heads; ++i) trust(data + i * tensor_->size(2), seqlen_q, seqlen_k);
    } else {
      const check::PlanShape shape = check::plan_shape(bounds, block_mask, seqlen_q, seqlen_k);
      batch = shape.size[0], heads = shape.size[1];
      own_.emplace(batch * heads * shape.size[2]);
      fill_plan(bounds, block_mask, seqlen_q, seqlen_k, causal, shape, own_->get());
      data = own_->get();
    }
  }
  const int32_t* data = nullptr;
  int64_t batch = 1, heads = 1;

 private:
  // What a kernel uses as an address must be right even if somebody wrote into the plan.
  static void trust(const int32_t* plan, int64_t seqlen_q, int64_t seqlen_k) {
    const PlanLayout at(seqlen_q, seqlen_k);
    bool good = plan[0] == kPlanMagic && plan[1] == seqlen_q && plan[2] == seqlen_k;
    std::vector<bool> seen(at.row_tiles, false);
    for (int64_t i = 0; good && i < at.row_tiles; ++i) {
      const int32_t r = plan[at.row_order + i];
      good = r >= 0 && r < at.row_tiles && !seen[r];
      if (good) seen[r] = true;
    }
    if (!good)
      check::fail(
          "plan must be the result of flashmask::plan for these sequence lengths, but holds something else; "
          "make the FlashMask again.");
  }
  std::optional<Tensor> tensor_;
  std::optional<Buffer<int32_t>> own_;
};

void describe(Problem& p, const Tensor& query, const Tensor& key, const Tensor& value, const CallPlan& plan,
              const MaybeTensor& block_mask, double scale) {
  p.batch = query.size(0), p.seqlen_q = query.size(1), p.heads_q = query.size(2);
  p.seqlen_k = key.size(1), p.heads_k = key.size(2);
  p.dim = static_cast<int>(query.size(3)), p.dim_v = static_cast<int>(value.size(3));
  p.dtype = dtype_of(query);
  constexpr double kLargest = std::numeric_limits<float>::max();
  p.scale = static_cast<float>(std::clamp(scale, -kLargest, kLargest));
  p.q = view_of(query), p.k = view_of(key), p.v = view_of(value);
  p.plan = plan.data, p.plan_batch = plan.batch, p.plan_heads = plan.heads;
  p.block_mask = block_mask_of(block_mask);
}

std::tuple<Tensor, Tensor> forward_op(const Tensor& query, const Tensor& key, const Tensor& value, MaybeTensor bounds,
                                      MaybeTensor block_mask, MaybeTensor given_plan, bool causal, double scale) {
  check::qkv(query, key, value);
  check::mask(query, key, bounds, block_mask, given_plan, causal);
  check::scale(scale);
  const int64_t b = query.size(0), sq = query.size(1), h = query.size(2);
  const int64_t out_size[4] = {b, sq, h, value.size(3)}, lse_size[3] = {b, h, sq};
  Tensor out = torch::stable::empty({out_size, 4}, query.scalar_type());
  Tensor lse = torch::stable::empty({lse_size, 3}, ScalarType::Float);
  if (b * sq * h == 0) return {out, lse};

  const Tensor q = dense_rows(query), k = dense_rows(key), v = dense_rows(value);
  const CallPlan plan(given_plan, bounds, block_mask, sq, key.size(1), causal);
  ForwardProblem p;
  describe(p, q, k, v, plan, block_mask, scale);
  p.out = static_cast<char*>(out.mutable_data_ptr());
  p.lse = lse.mutable_data_ptr<float>();
  forward(p, *current_level().kernels(p.dtype), torch_workers());
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor> backward_op(const Tensor& grad_out, MaybeTensor grad_lse, const Tensor& query,
                                               const Tensor& key, const Tensor& value, const Tensor& out,
                                               const Tensor& lse, MaybeTensor bounds, MaybeTensor block_mask,
                                               MaybeTensor given_plan, bool causal, double scale) {
  check::qkv(query, key, value);
  check::mask(query, key, bounds, block_mask, given_plan, causal);
  check::scale(scale);
  check::results(grad_out, grad_lse, query, value, out, lse);
  const auto result_like = [](const Tensor& t) { return torch::stable::empty(t.sizes(), t.scalar_type()); };
  Tensor grad_q = result_like(query), grad_k = result_like(key), grad_v = result_like(value);
  if (query.size(0) * query.size(2) == 0) {  // no query head: nothing reaches key and value
    torch::stable::zero_(grad_k);
    torch::stable::zero_(grad_v);
    return {grad_q, grad_k, grad_v};
  }

  const Tensor q = dense_rows(query), k = dense_rows(key), v = dense_rows(value);
  const Tensor o = dense_rows(out), go = dense_rows(grad_out);
  const Tensor l = torch::stable::contiguous(lse);
  const MaybeTensor gl = grad_lse ? MaybeTensor(torch::stable::contiguous(*grad_lse)) : std::nullopt;
  const CallPlan plan(given_plan, bounds, block_mask, query.size(1), key.size(1), causal);
  BackwardProblem p;
  describe(p, q, k, v, plan, block_mask, scale);
  p.out = view_of(o), p.grad_out = view_of(go);
  p.lse = l.const_data_ptr<float>();
  p.grad_lse = gl ? gl->const_data_ptr<float>() : nullptr;
  p.grad_q = static_cast<char*>(grad_q.mutable_data_ptr());
  p.grad_k = static_cast<char*>(grad_k.mutable_data_ptr());
  p.grad_v = static_cast<char*>(grad_v.mutable_data_ptr());
  backward(p, *current_level().kernels(p.dtype), torch_workers());
  return {grad_q, grad_k, grad_v};
}

// --- the few things Python asks for without a tensor ---

PyObject* isa_levels(PyObject*, PyObject*) {
  int count = 0;
  const Level* all = levels(&count);
  PyObject* names = PyList_New(0);
  for (int i = 0; names && i < count; ++i) {
    if (!all[i].supported()) continue;
    PyObject* name = PyUnicode_FromString(all[i].name);
    if (!name || PyList_Append(names, name) < 0) {
      Py_XDECREF(name);
      Py_DECREF(names);
      return nullptr;
    }
    Py_DECREF(name);
  }
  return names;
}

PyObject* isa(PyObject*, PyObject*) { return PyUnicode_FromString(current_level().name); }

PyObject* set_isa(PyObject*, PyObject* name) {
  PyObject* bytes = PyUnicode_Check(name) ? PyUnicode_AsUTF8String(name) : nullptr;
  if (!bytes) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "name must be a str; pass one of isa_levels().");
    return nullptr;
  }
  const bool known = set_level(PyBytes_AsString(bytes));
  Py_DECREF(bytes);
  if (!known) {
    PyErr_Format(PyExc_ValueError, "name must be one of the levels of this machine, but is %R; see isa_levels().",
                 name);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* release_memory(PyObject*, PyObject*) { return PyLong_FromSize_t(release_kept()); }

}  // namespace
}  // namespace flashmask

STABLE_TORCH_LIBRARY_IMPL(flashmask, CPU, m) {
  m.impl("forward", TORCH_BOX(&flashmask::forward_op));
  m.impl("backward", TORCH_BOX(&flashmask::backward_op));
  m.impl("plan", TORCH_BOX(&flashmask::plan));
}

// Importing the module runs the registrations above.
PyMODINIT_FUNC PyInit__C() {
  static PyMethodDef methods[] = {
      {"isa_levels", flashmask::isa_levels, METH_NOARGS, "Levels of instructions this machine supports, best last."},
      {"isa", flashmask::isa, METH_NOARGS, "The level in use."},
      {"set_isa", flashmask::set_isa, METH_O, "Chooses a level for the whole process."},
      {"release_memory", flashmask::release_memory, METH_NOARGS, "Frees kept working memory; returns bytes."},
      {nullptr, nullptr, 0, nullptr}};
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}
